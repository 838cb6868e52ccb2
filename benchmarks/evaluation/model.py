"""Share of an evaluation's time in which its engine computes: household episodes by SmolLM2-135M, eight turns each.

    OMP_NUM_THREADS=1 python benchmarks/evaluation/model.py --output benchmarks/evaluation/model.json

The rest is environments, rendering, scheduling and records, which wait for the engine on one thread. The time is that
of all episodes, without loading the model. ``--model`` names another model, such as a run's folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import agentgym
from agentgym.evals import play
from agentgym.evals.runner import EvalSummary
from agentgym.trainers.engines.torch.engine import TorchEngine

ENV, MAX_TURNS = "agentgym/Household-v0", 8


@contextmanager
def observed(engines: list[TorchEngine], seconds: list[float]) -> Iterator[None]:
    """Collect the engines that are made, and the seconds in which episodes are played."""
    make, evaluate = TorchEngine.__init__, play.evaluate

    def made(self: TorchEngine, *given: Any, **settings: Any) -> None:
        make(self, *given, **settings)
        engines.append(self)

    async def played(*given: Any, **settings: Any) -> EvalSummary:
        began = time.perf_counter()
        try:
            return await evaluate(*given, **settings)
        finally:
            seconds.append(time.perf_counter() - began)

    with patch.object(TorchEngine, "__init__", made), patch.object(play, "evaluate", played):
        yield


def measure(model: str, num_episodes: int, num_envs: int) -> dict[str, Any]:
    """Evaluate once and return the engine's share."""
    engines: list[TorchEngine] = []
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder, observed(engines, seconds):
        found = agentgym.evaluate(
            ENV,
            model,
            kwargs={"max_turns": MAX_TURNS},
            episodes=num_episodes,
            max_new_tokens=32,
            num_envs=num_envs,
            run_dir=Path(folder) / "run",
        )
    (engine,), (whole,) = engines, seconds
    return {
        "model": model,
        "episodes": num_episodes,
        "num_envs": num_envs,
        "success": found.success,
        "seconds": round(whole, 2),
        "engine_share": round(engine._stats.busy_s / whole, 3),
    }


def main() -> None:
    """Measure, print, and write the requested file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = json.dumps(measure(given.model, given.episodes, given.num_envs), indent=2)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
