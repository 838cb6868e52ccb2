"""Estimators with losses: those that the rules allow train five steps, the others are refused.

All pairs are made as configurations. Each estimator trains with two losses and each loss with several estimators: the
rules say which pairs depend on each other, so the other pairs would train the same code again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from testkit import TESTKIT
from testkit.fake_openai import FakeOpenAI, completion

from agentgym.credit.component import ESTIMATORS
from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.losses.component import POLICY_LOSSES
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

ENV_FILE = TESTKIT / "clue_env.py"
NUM_STEPS = 5
NEEDS = {
    "igpo": ['credit.shapers=[{"kind": "information_gain"}]'],
    "capo": ["judge.model=openai:http://127.0.0.1:9/v1", "judge.grades=all_faults"],
}
OF_LOSS = {
    "rl_plus": ['strategy.guidance={"kind": "demonstration"}'],
    "refuel": ['strategy.branching={"kind": "pairs"}', "loss.corrections=[]"],
}
PER_TOKEN = ("reinforce_pp", "token_gae", "bi_level_gae", "poad", "compaction_gae")
"""Estimators whose advantages differ within a turn: a sequence ratio over turns cannot carry them (rule 5)."""


@cache
def world() -> TrainConfig:
    """The smallest world in which every estimator has what it reads."""
    return replace(
        apply_overrides(load_recipe("tiny"), [f"env.id={ENV_FILE}:Clue-v0"]),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=320, max_context_tokens=160),
        sft=SftConfig(num_demos=1200, num_epochs=2, batch_size=8),
        num_steps=0,
        groups_per_step=2,
        group=GroupConfig(group_size=4, num_envs=8),
        eval=EvalConfig(num_episodes=1),
        zero_variance_filter="off",
        checkpoint_every=NUM_STEPS,
    )


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm start that all combinations share: it says words, and not always the right one."""
    run_dir = tmp_path_factory.mktemp("grid") / "start"
    train(world(), run_dir)
    return run_dir / "model"


def why_refused(estimator: str, loss: str) -> str | None:
    """What the message of a combination that cannot be has to say."""
    return "composition rule 5" if loss == "gspo" and estimator in PER_TOKEN else None


def needs(estimator: str, loss: str) -> list[str]:
    """Return what a pair reads beside its names."""
    return [*NEEDS.get(estimator, []), *OF_LOSS.get(loss, [])]


def trained_pairs() -> list[tuple[str, str]]:
    """Return the pairs that train: a loss in turn for every estimator, and an estimator in turn for every loss."""
    estimators, losses = sorted(set(ESTIMATORS) - {"capo"}), sorted(POLICY_LOSSES)
    pairs = {(one, losses[at % len(losses)]) for at, one in enumerate(estimators)}
    pairs |= {(one, losses[(at + len(losses) // 2) % len(losses)]) for at, one in enumerate(estimators)}
    pairs |= {(estimators[at * 5 % len(estimators)], one) for at, one in enumerate(losses)}
    pairs |= {("capo", "dapo"), ("capo", "ppo_clip")}
    return sorted(pair for pair in pairs if why_refused(*pair) is None)


@pytest.fixture(scope="module")
def judge() -> Iterator[FakeOpenAI]:
    """A judge for which the first turn of every episode is wrong."""

    def play(request: dict[str, Any]) -> Any:
        ids = request["response_format"]["json_schema"]["schema"]["properties"]["scores"]["required"]
        return completion(json.dumps({"reason": "", "scores": {name: float(name != "1") for name in ids}}))

    server = FakeOpenAI(play)
    yield server
    server.close()


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_every_pair_is_a_configuration_or_is_refused(estimator: str, loss: str) -> None:
    overrides = [f"credit.estimator={estimator}", f"loss.kind={loss}", *needs(estimator, loss)]
    if reason := why_refused(estimator, loss):
        with pytest.raises(ConfigError, match=reason):
            apply_overrides(world(), overrides)
    else:
        assert apply_overrides(world(), overrides).loss.kind == loss


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "loss"), trained_pairs())
def test_estimators_with_losses(estimator: str, loss: str, start: Path, judge: FakeOpenAI, tmp_path: Path) -> None:
    overrides = [
        f"model.path={start}",
        "sft.num_demos=0",
        f"num_steps={NUM_STEPS}",
        f"credit.estimator={estimator}",
        f"loss.kind={loss}",
        "loss.num_updates=2",  # with one update every ratio is 1, and most losses have the same gradient
        *needs(estimator, loss),
        *([f"judge.model=openai:{judge.url}?model=m"] if estimator == "capo" else []),
    ]
    train(apply_overrides(world(), overrides), tmp_path / "run")
    steps = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(steps) == NUM_STEPS
    assert all(math.isfinite(row[name]) for row in steps for name in ("loss", "grad_norm", "entropy"))
    assert any(row["grad_norm"] > 0 for row in steps), "nothing was learned from"


@pytest.mark.slow
def test_no_two_losses_end_in_the_same_weights(start: Path, tmp_path: Path) -> None:
    """A large learning rate and two epochs of two updates: every gate meets ratios that it acts on."""
    weights = {}
    for loss in POLICY_LOSSES:
        overrides = [
            *(f"model.path={start}", "sft.num_demos=0", "num_steps=1", "credit.estimator=grpo", f"loss.kind={loss}"),
            *("loss.num_updates=2", "loss.num_epochs=2", "optimizer.lr=0.01", "groups_per_step=6"),
        ]
        overrides += needs("grpo", loss)
        if loss == "bapo":  # keeps the bounds it starts from; its search would end at DAPO's here
            overrides.append('loss.options={"kind": "bapo", "target": 0.01}')
        train(apply_overrides(world(), overrides), tmp_path / loss)
        weights[loss] = load_file(tmp_path / loss / "model" / "model.safetensors")
    same = [
        (one, other)
        for one, other in combinations(weights, 2)
        if all(value.equal(weights[other][name]) for name, value in weights[one].items())
    ]
    assert same == [("disco", "drpo")], "right episodes are of one length here, where DRPO's weights are equal"
