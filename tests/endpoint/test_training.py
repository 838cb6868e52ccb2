"""Training and evaluation by a harness against those by agentgym's own loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from testkit.counting_runs import config, weights

from agentgym.errors import ConfigError
from agentgym.rollout.record import read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.loop import train
from agentgym.types import Latency, Segment, Trajectory


def timeless(one: Trajectory) -> Trajectory:
    segments = [Segment(tuple(replace(t, latency=Latency()) for t in part.turns)) for part in one.segments]
    return replace(one, segments=tuple(segments), error=None)


def trained(run_dir: Path, *overrides: str) -> tuple[list[Trajectory], bytes]:
    # one episode at a time: who shares a batch moves the last bits of log-probabilities
    train(apply_overrides(config(), ("group.num_envs=1", "num_steps=2", *overrides)), run_dir)
    groups = [r.group for step in recorded_steps(run_dir) for r in read_records(record_path(run_dir, step))]
    return [timeless(one) for group in groups for one in group.trajectories], weights(run_dir)


def test_a_run_by_the_reference_harness_ends_with_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    ordinary, expected = trained(tmp_path / "loop")
    by_harness, found = trained(tmp_path / "harness", "harness.name=openai_loop")
    assert ordinary
    assert by_harness == ordinary
    assert found == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("harness.name=openai_lop",), "openai_loop"),
        (("harness.name=openai_loop", "context.policy=window"), "context.policy"),
        (("harness.name=command", "harness.options.comand=ls"), r"'harness\.comand'; did you mean 'harness\.command'"),
        (("harness.name=openai_loop", "cluster.address=auto"), "cluster.num_env_workers=0"),
        (("harness.max_calls=0",), "max_calls"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(config(), overrides)


def test_settings_of_the_harness_itself_are_taken() -> None:
    made = apply_overrides(config(), ("harness.name=command", "harness.options.command=ls -l"))
    assert made.harness.options == {"command": "ls -l"}
