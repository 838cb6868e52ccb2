"""The cost of a second trained role: processor time of a step, and memory, with adapters over one base model.

    OMP_NUM_THREADS=1 python benchmarks/roles/cost.py --output benchmarks/roles/cost.json

Kuhn poker, SmolLM2 with adapters of rank 8 that 64 demonstrations have taught the moves. In ``one`` the policy is
player 1, and a script is player 2. In ``two`` player 2 is a second trained role, with adapters of its own over the same
base, so that both sample and train alike. Arms alternate, each in a process of its own. ``step`` is the median of the
processor seconds of a step, rollouts included, without the first step; ``memory`` is the largest resident set. Both are
given as ratios to ``one``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from agentgym.trainers.config.overrides import apply_overrides, save_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.loop import TrainingLoop
from agentgym.trainers.phases.rollouts import Rollouts
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.types import Metrics

ARMS = {"one": ["roles.player_2.policy=random"], "two": ["roles.player_2.trained=true"]}
SETTINGS = (
    "model.lora.rank=8",
    "model.max_context_tokens=512",
    "sft.num_demos=64",
    "sft.num_epochs=1",
    "groups_per_step=8",
    "eval.num_episodes=1",
    "loss.regularisers=[]",
)


class TimedLoop(TrainingLoop):
    """A training run that notes the processor seconds of its steps."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        super().__init__(config, run_dir, False)
        self.step_s: list[float] = []

    async def step(self, rollouts: Rollouts, clock: Clock) -> Metrics:
        began = time.process_time()
        metrics = await super().step(rollouts, clock)
        self.step_s.append(time.process_time() - began)
        return metrics


def measure(arm: str, changes: list[str]) -> dict[str, float]:
    """Train one arm in this process, and return its seconds a step and its memory in MiB."""
    config = apply_overrides(load_recipe("kuhn"), [*SETTINGS, *ARMS[arm], *changes])
    with tempfile.TemporaryDirectory() as folder:
        save_config(config, Path(folder) / "config.json")
        loop = TimedLoop(config, Path(folder))
        asyncio.run(loop.train())
    return {
        "step_s": median(loop.step_s[1:]),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure both arms in turns, or one arm for a parent process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each arm")
    parser.add_argument("--change", nargs="*", default=["model.path=smollm2", "num_steps=5"], metavar="KEY=VALUE")
    parser.add_argument("--arm", choices=list(ARMS), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(measure(options.arm, options.change)))
        return
    rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for _ in range(options.rounds):
        for arm, found in rows.items():
            command = [sys.executable, __file__, "--arm", arm, "--change", *options.change]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    best = {
        arm: {name: min(row[name] for row in found) for name in ("step_s", "memory_mib")} for arm, found in rows.items()
    }
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, one thread",
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "change": options.change,
        "arms": best,
        "two_over_one": {name: round(best["two"][name] / best["one"][name], 3) for name in ("step_s", "memory_mib")},
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
