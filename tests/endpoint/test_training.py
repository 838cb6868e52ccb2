"""Training and evaluation by a harness against those by agentgym's own loop."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from testkit.counting_runs import config, weights

from agentgym.api.policies import check_policy
from agentgym.errors import ConfigError, UsageError
from agentgym.evals.config import EvalConfig
from agentgym.rollout.record import read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.planning.dry_run import dry_run
from agentgym.trainers.train import train
from agentgym.types import Latency, Segment, Trajectory


def timeless(one: Trajectory) -> Trajectory:
    segments = [Segment(tuple(replace(t, latency=Latency()) for t in part.turns)) for part in one.segments]
    return replace(one, segments=tuple(segments), error=None)


def trained(run_dir: Path, *overrides: str) -> tuple[list[Trajectory], str]:
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


@pytest.mark.parametrize(
    ("name", "package"), [("smolagents", "smolagents[openai]"), ("mini_swe_agent", "mini-swe-agent")]
)
def test_an_agent_that_is_not_installed_is_refused_before_the_warm_start(
    name: str, package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # without any package
    python.chmod(0o755)
    made = apply_overrides(config(), (f"harness.name={name}", f"harness.options.python={python}"))
    lacks = f"{python} does not have {package}: {python} -m pip install '{package}'"
    with pytest.raises(UsageError, match=re.escape(lacks)):
        train(made, tmp_path / "run")
    assert not (tmp_path / "run").exists() and "warm start" not in capsys.readouterr().err
    assert any(lacks in line for line in dry_run(made).downloads)
    with pytest.raises(UsageError, match=r"harness\.python='no-such-python' is no program"):
        train(apply_overrides(made, ("harness.options.python=no-such-python",)), tmp_path / "run")
    plan = EvalConfig(harness={"name": name, "python": str(python)})
    with pytest.raises(UsageError, match=re.escape(lacks)):
        check_policy("smollm2", plan)


def test_settings_of_the_harness_itself_are_taken() -> None:
    made = apply_overrides(config(), ("harness.name=command", "harness.options.command=ls -l"))
    assert made.harness.options == {"command": "ls -l"}
