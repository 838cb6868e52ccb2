"""The cost of images for runs of text alone: processor time now and before images, as ratios.

    git worktree add /tmp/before 0f4f3ccc
    export OMP_NUM_THREADS=1
    python benchmarks/seeing/text_cost.py --before /tmp/before --output benchmarks/seeing/text_cost.json

Both checkouts train Kuhn poker for a few steps, which has no pictures: the start alone (no demonstrations, no steps),
and the whole run. ``work`` is the difference of the two: demonstrations, warm start, rollouts, training and
evaluations. Arms alternate, each run is a process of its own, and the least processor time of the rounds counts.
0f4f3ccc has no images yet. Later commits also added several models in one run, so the ratio holds the cost of both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = ("sft.num_demos=0", "num_steps=0")
WHOLE = ("sft.num_demos=300", "num_steps=10", "groups_per_step=32", "eval.num_episodes=20")


def processor_s(checkout: Path, changes: Sequence[str]) -> float:
    """Train once with the code of a checkout, and return the processor seconds of the process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = str(Path(folder) / "run")
        command = [sys.executable, "-m", "agentgym", "train", "kuhn", *changes, "--run-dir", run_dir]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        subprocess.run([*command, "--json"], cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout; empty without git."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Measure both checkouts in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="checkout of an earlier commit")
    parser.add_argument("--before-commit", default="", help="its commit, if it is no checkout of git")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--change", nargs="*", default=WHOLE, metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    arms = {"before": options.before.resolve(), "now": ROOT}
    found: dict[str, dict[str, list[float]]] = {arm: {"start_s": [], "whole_s": []} for arm in arms}
    for _ in range(options.rounds):
        for name, changes in (("start_s", START), ("whole_s", ())):
            for arm, checkout in arms.items():
                found[arm][name].append(processor_s(checkout, [*options.change, *changes]))
    least = {arm: {name: round(min(of), 2) for name, of in times.items()} for arm, times in found.items()}
    for of in least.values():
        of["work_s"] = round(of["whole_s"] - of["start_s"], 2)
    result = {
        "command": f"agentgym train kuhn {' '.join(options.change)}",
        "machine": f"{platform.machine()}, one thread of a busy machine with two cores",
        "date": date.today().isoformat(),
        "commits": {"before": options.before_commit or commit_of(arms["before"]), "now": commit_of(ROOT)},
        "rounds": options.rounds,
        "arms": least,
        "now_over_before": {name: round(least["now"][name] / least["before"][name], 3) for name in least["now"]},
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
