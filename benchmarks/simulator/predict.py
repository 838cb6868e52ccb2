"""Predict how fast a recorded training run would be under other schedules.

    python benchmarks/simulator/predict.py runs/mine --engines 1 2 4

Record the run in sync mode. Everything but the mode and the number of engines is taken from the run's configuration.
The error of these predictions is measured in ``benchmarks/asynchronous/simulated.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simulator import MODES, Plan, simulate
from traces import read_recording

from agentgym.trainers.config.overrides import load_config


def plan_of(run_dir: Path) -> Plan:
    """Return the schedule of a run."""
    config = load_config(run_dir / "config.json")
    return Plan(
        mode=config.pipeline.mode,
        num_steps=config.num_steps,
        groups_per_step=config.groups_per_step,
        max_staleness=config.pipeline.max_staleness,
        num_envs=config.group.num_envs,
        over_provision=config.pipeline.over_provision,
    )


def table(run_dir: Path, engines: list[int]) -> Iterator[str]:
    """Yield the lines of a Markdown table, one per mode and number of engines."""
    recording, recorded = read_recording(run_dir), plan_of(run_dir)
    yield from ("| mode | engines | episodes per hour | engines busy | trainer waiting |", "|---|---|---|---|---|")
    for mode in MODES:
        for num_engines in engines:
            found = simulate(replace(recorded, mode=mode, num_engines=num_engines), recording)
            shares = f"{found.engine_busy_share:.0%} | {found.waiting_share:.0%}"
            yield f"| {mode} | {num_engines} | {found.episodes_per_hour:,.0f} | {shares} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--engines", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    print("\n".join(table(options.run_dir, options.engines)))
