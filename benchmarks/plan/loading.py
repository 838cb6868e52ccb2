"""Host memory of each rank while a run's model is loaded and sharded, where the first rank alone samples episodes.

    python benchmarks/plan/loading.py                              -> a line of JSON for each number of ranks
    python benchmarks/plan/loading.py --ranks 2 --change model.path=FOLDER

The measure is the process's peak resident size (``VmHWM``) above its size before the model was loaded. It leaves out
libraries and includes the copies that collectives make.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.distributed.ranks import join_ranks
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--change", nargs="*", default=[], metavar="KEY=VALUE", help="of the recipe smollm2-guess")
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run_dir:
        measure(arguments.change, arguments.run_dir)
        return
    for num_ranks in arguments.ranks:
        print(json.dumps({"ranks": num_ranks, "peak_mib": peaks(arguments.change, num_ranks)}), flush=True)


def peaks(changes: list[str], num_ranks: int) -> list[int]:
    """Return MiB by rank."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        mine = [__file__, "--run-dir", folder, "--change", *changes]
        subprocess.run([sys.executable, *torchrun, *mine], check=True)
        return [int((Path(folder) / f"peak-{rank}").read_text()) for rank in range(num_ranks)]


def measure(changes: list[str], run_dir: Path) -> None:
    """Load a model as one rank of a run, and write the memory it took."""
    config = apply_overrides(load_recipe("smollm2-guess"), ["ranks.rollouts=first", *changes])
    ranks = join_ranks(config.ranks)
    before = resident("VmRSS")
    Run(config, run_dir, ranks)
    (run_dir / f"peak-{ranks.rank}").write_text(str(round((resident("VmHWM") - before) / MIB)))
    ranks.meet()
    ranks.leave()


def resident(name: str) -> int:
    """Return a size of this process that the kernel keeps, in bytes."""
    lines = Path(f"/proc/{os.getpid()}/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


if __name__ == "__main__":
    main()
