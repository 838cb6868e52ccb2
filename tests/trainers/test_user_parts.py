"""Losses, corrections, regularisers and engines of a user's own file train, are saved, and resume."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit import TESTKIT, counting_runs
from testkit.checkpoints import drop_checkpoint, read_checkpoint

from agentgym import plugins
from agentgym.credit.component import ESTIMATORS
from agentgym.errors import ConfigError, EngineError, RunStoppedError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides, load_config
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.engines.component import ENGINES
from agentgym.trainers.losses.component import FAMILIES
from agentgym.trainers.train import train

FILE = str(TESTKIT / "user_parts.py")


@pytest.fixture(autouse=True)
def _registries_as_before() -> Iterator[None]:
    registries: list[Any] = [*FAMILIES.values(), ENGINES, ESTIMATORS]
    before = [dict(registry._components) for registry in registries if list(registry)]
    yield
    for registry, components in zip(registries, before, strict=True):
        registry._components = components
    plugins._loaded_files.clear()


def config(*overrides: str) -> TrainConfig:
    made = counting_runs.config(
        num_steps=2, eval=EvalConfig(num_episodes=2), zero_variance_filter="off", checkpoint_every=1
    )
    return apply_overrides(made, overrides)


PARTS = (
    f"loss.kind={FILE}:log_clip",
    f'loss.corrections=[{{"kind": "{FILE}:half", "factor": 0.25}}]',
    f'loss.regularisers=[{{"kind": "{FILE}:flat"}}]',
    f"engine.kind={FILE}:noted",
    f'engine.options={{"kind": "{FILE}:noted", "name": "who.txt"}}',
)


def test_a_run_trains_with_a_users_parts_and_resumes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(*PARTS), run)
    assert (run / "who.txt").read_text() == "made"
    rows = [row for row in read_json_lines(run / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(row["flat"] > 0 and row["grad_norm"] > 0 for row in rows)
    assert all(row["correction_weight"] == pytest.approx(0.25) for row in rows)
    saved = json.loads((run / "config.json").read_text())
    assert saved["loss"]["corrections"] == [{"kind": f"{FILE}:half", "factor": 0.25}]
    assert load_config(run / "config.json") == config(*PARTS)
    whole = read_checkpoint(run, 2)["model"]
    drop_checkpoint(run, 2)
    (run / "model" / "model.safetensors").unlink()
    train(config(*PARTS), run, resume=True)
    again = read_checkpoint(run, 2)["model"]
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


def test_a_correction_that_weighs_is_not_joined_with_another() -> None:
    parts = f'loss.corrections=[{{"kind": "{FILE}:half"}}, {{"kind": "token_tis"}}]'
    with pytest.raises(ConfigError, match="multiply by the same ratio twice"):
        config(parts)


def test_weights_between_0_and_1_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"credit gives turns a loss_weight of 0\.5, and the trainer takes 0 or 1"):
        train(config(f"credit.estimator={FILE}:half_weights", "num_steps=1"), tmp_path / "run")


def test_a_correction_without_settings_is_named_by_its_kind_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config(f'loss.corrections=[{{"kind": "{FILE}:third"}}]', "num_steps=1"), run)
    rows = [row for row in read_json_lines(run / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["correction_weight"] for row in rows] == [pytest.approx(1 / 3)]


def test_what_is_no_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"broken made a str, which lacks policy_version, .*generate, .* of agentgym"):
        train(config(f"engine.kind={FILE}:broken", "sft.num_demos=2", "sft.num_epochs=1"), tmp_path / "run")


ENGINES_WITH_A_CHANNEL = """
from agentgym.trainers.engines.component import engine
from agentgym.trainers.placement.build import torch_engine
from agentgym.trainers.placement.channels import EngineChannel

CALLS = []


class Counted(EngineChannel):
    async def publish(self, version):
        CALLS.append(f"publish {version}")
        await super().publish(version)

    async def sleep(self):
        CALLS.append("sleep")


@engine("far", channel=Counted, is_embedded=True)
def far(config, model):
    made = torch_engine(config, model)

    async def connect(say):
        say("far: connected")
        CALLS.append("connect")

    made.connect = connect
    return made
"""


def test_an_engine_may_bring_the_channel_of_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "far.py"
    file.write_text(ENGINES_WITH_A_CHANNEL, encoding="utf-8")
    train(config(f"engine.kind={file}:far", "num_steps=2", "sft.num_demos=2", "sft.num_epochs=1"), tmp_path / "run")
    module = next(one for one in list(sys.modules.values()) if getattr(one, "__file__", None) == str(file))
    assert module.CALLS == ["connect", "sleep", "publish 0", "sleep", "publish 1", "sleep", "publish 2"]
    assert "far: connected" in capsys.readouterr().err


ENGINES_THAT_FAIL = """
from agentgym.trainers.placement.build import torch_engine
from agentgym.trainers.engines.component import engine


@engine("no_chip")
def no_chip(config, model):
    raise ValueError("no such chip")


class Bare:
    def __getattr__(self, name):
        raise RuntimeError("no attribute yet")


@engine("bare")
def bare():
    return Bare()


@engine("lost")
def lost(config, model):
    made = torch_engine(config, model)

    async def update_weights(version):
        raise ValueError("the chip is lost")

    made.update_weights = update_weights
    return made


class Deaf:
    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        return getattr(self.engine, name)

    async def generate(self, *arguments, **named):
        raise ValueError("the chip hears nothing")


@engine("deaf")
def deaf(config, model):
    return Deaf(torch_engine(config, model))
"""


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("no_chip", ConfigError, "failed: ValueError: no such chip"),
        ("bare", ConfigError, "failed: RuntimeError: no attribute yet"),
        ("lost", EngineError, ": update_weights: ValueError: the chip is lost"),
    ],
)
def test_an_engine_that_fails_is_named(name: str, error: type[Exception], said: str, tmp_path: Path) -> None:
    file = tmp_path / "engines.py"
    file.write_text(ENGINES_THAT_FAIL, encoding="utf-8")
    with pytest.raises(error) as raised:
        train(config(f"engine.kind={file}:{name}", "sft.num_demos=2", "sft.num_epochs=1"), tmp_path / "run")
    assert str(raised.value) == f"engine.kind={file}:{name}{'' if said[0] == ':' else ' '}{said}"


def test_an_engine_that_cannot_sample_is_named(tmp_path: Path) -> None:
    file = tmp_path / "engines.py"
    file.write_text(ENGINES_THAT_FAIL, encoding="utf-8")
    with pytest.raises(RunStoppedError) as raised:
        train(config(f"engine.kind={file}:deaf", "sft.num_demos=2", "sft.num_epochs=1"), tmp_path / "run")
    assert "Deaf.generate: ValueError: the chip hears nothing" in str(raised.value)
    assert "look at its code, its endpoint or, in training, its engine (engine.kind)" in str(raised.value)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("engine.kind=torhc", "unknown engine 'torhc'; did you mean 'torch'"),
        (f"engine.kind={FILE}:nothing", "registers no engine 'nothing', only broken, noted"),
        (f'loss.regularisers=[{{"kind": "{FILE}:nothing"}}]', "registers no regulariser 'nothing', only flat"),
    ],
)
def test_unknown_parts_are_refused(override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        config(override)


def test_ray_starts_agentgyms_own_engines_alone() -> None:
    with pytest.raises(ConfigError, match="starts engines of kind torch and vllm on a Ray cluster"):
        config(f"engine.kind={FILE}:noted", "cluster.address=auto")
