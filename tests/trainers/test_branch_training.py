"""Runs whose episodes branch, get hints or are trained again: what is trained, counted, resumed and refused."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.counting_runs import config, trained_ordinals, weights
from testkit.drawing_engine import TASK, DrawingEngine
from testkit.faulty_runs import break_environments
from testkit.played_groups import in_waves
from testkit.worlds import LongCounter
from transformers import StableLmConfig, StableLmForCausalLM

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.credit.modulators.branches import R3lOptions, SharedPrefixOptions
from agentgym.errors import ConfigError, CorruptDataError
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.retry import RetryOptions
from agentgym.trainers.config.overrides import apply_overrides, load_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.batch import Batch, build_batches
from agentgym.trainers.data.layout import Forest
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.samples import build_samples, filter_groups
from agentgym.trainers.kinds import LayoutKind
from agentgym.trainers.losses.loss import token_logprobs
from agentgym.trainers.train import train
from agentgym.types import TrajectoryGroup

ARPO = (
    'strategy.branching={"kind": "arpo", "log_vocabulary": 5.8}',
    'credit.modulators=[{"kind": "shared_prefix"}]',
)
RETRY = (
    'strategy.branching={"kind": "retry", "num_hints": 1}',
    "credit.estimator=grpo",
    'credit.modulators=[{"kind": "r3l_pivot"}]',
)
FADING = ('strategy.guidance={"kind": "fading", "target": 1.0}', "env.num_train_tasks=5")
REPLAY = ('strategy.replay={"kind": "success", "keep": 2}', "env.num_train_tasks=5")


def run(run_dir: Path, *overrides: str, **changes: Any) -> TrainConfig:
    made = apply_overrides(config(**changes), overrides)
    train(made, run_dir)
    return made


def groups_of(run_dir: Path) -> list[TrajectoryGroup]:
    return [r.group for step in recorded_steps(run_dir) for r in read_records(record_path(run_dir, step))]


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]


@pytest.mark.parametrize("overrides", [ARPO, RETRY], ids=["arpo", "retry"])
def test_branches_train_and_are_counted_once(overrides: tuple[str, ...], tmp_path: Path) -> None:
    run(tmp_path / "run", *overrides)
    groups, rows = groups_of(tmp_path / "run"), rows_of(tmp_path / "run")
    members = [member for group in groups for member in group.trajectories]
    branches = [member for member in members if member.parent >= 0]
    assert branches and sum(row["num_branches"] for row in rows) == len(branches)
    own = sum(len(turn.completion.token_ids) for member in members for turn in member.own_turns)
    everything = sum(len(turn.completion.token_ids) for member in members for turn in member.turns)
    assert sum(row["sampled_tokens"] for row in rows) == own < everything
    unaided = [member for member in members if member.is_unaided]
    assert len(unaided) < len(members)
    (history,) = read_checkpoint(tmp_path / "run", 6)["plan"]["history"]
    assert sum(size for visits in history.values() for _, size, _ in visits) == len(unaided)
    assert all(math.isfinite(row["loss"]) for row in rows if row["loss"] is not None)
    assert any(row["loss"] is not None for row in rows)
    if overrides is RETRY:
        hints = [member.own_turns[0].hint for member in branches if member.own_turns]
        assert Counter(hints).most_common(1)[0][0] == "add: 1" and {*hints} <= {"add: 1", ""}, "empty without room"


def test_hints_are_for_tasks_that_fail_and_are_no_success(tmp_path: Path) -> None:
    run(tmp_path / "run", *FADING)
    groups, rows = groups_of(tmp_path / "run"), rows_of(tmp_path / "run")
    helped = [member for group in groups for member in group.trajectories if not member.is_unaided]
    assert helped and sum(row["num_hints"] for row in rows) == sum(bool(t.hint) for m in helped for t in m.turns)
    assert {turn.hint for member in helped for turn in member.turns} == {"", "add: 1"}
    for row, step in zip(rows, recorded_steps(tmp_path / "run"), strict=True):
        own = [r.group for r in read_records(record_path(tmp_path / "run", step))]
        unaided = [bool(m.success) for group in own for m in group.trajectories if m.is_unaided]
        assert row["success"] == pytest.approx(sum(unaided) / len(unaided))


def test_a_stored_success_takes_the_place_of_a_failure_where_all_failed(tmp_path: Path) -> None:
    run(tmp_path / "run", *REPLAY)
    groups, rows = groups_of(tmp_path / "run"), rows_of(tmp_path / "run")
    again = [(group, m) for group in groups for m in group.trajectories if m.replayed_step is not None]
    assert again and sum(row["num_replayed"] for row in rows) == len(again)
    for group, member in again:
        assert member.replayed_step is not None
        others = [m for m in group.trajectories if m is not member]
        assert member.success and not any(m.success for m in others)
        records = read_records(record_path(tmp_path / "run", member.replayed_step))
        originals = [m for r in records if r.group.task == group.task for m in r.group.trajectories]
        assert replace(member, replayed_step=None) in originals, "with its tokens and their log-probabilities"
    fresh = [m for group in groups for m in group.trajectories if m.replayed_step is None]
    own = sum(len(turn.completion.token_ids) for member in fresh for turn in member.turns)
    assert sum(row["sampled_tokens"] for row in rows) == own
    ages = [
        step - member.replayed_step
        for step in recorded_steps(tmp_path / "run")
        for record in read_records(record_path(tmp_path / "run", step))
        for member in record.group.trajectories
        if member.replayed_step is not None
    ]
    assert max(row["staleness_max"] for row in rows) == max(ages) > 0, "of what is trained again"
    (stored,) = read_checkpoint(tmp_path / "run", 6)["plan"]["successes"]
    assert stored and max(map(len, stored.values())) <= 2


@pytest.mark.parametrize("overrides", [ARPO, RETRY, (*FADING, *REPLAY)], ids=["arpo", "retry", "hints and replay"])
def test_a_resumed_run_ends_in_the_same_weights(overrides: tuple[str, ...], tmp_path: Path) -> None:
    made = run(tmp_path / "run", *overrides)
    expected, held = weights(tmp_path / "run"), read_checkpoint(tmp_path / "run", 6)
    drop_checkpoint(tmp_path / "run", 6)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    assert load_config(tmp_path / "run" / "config.json") == made
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected
    assert read_checkpoint(tmp_path / "run", 6)["plan"] == held["plan"]
    assert sorted(trained_ordinals(tmp_path / "run")) == list(range(18)), "every group is trained once"


def test_a_model_is_asked_about_its_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", 'strategy.branching={"kind": "retry", "pivot": "reflect"}', "model.max_context_tokens=1600")
    rows = rows_of(tmp_path / "run")
    members = [member for group in groups_of(tmp_path / "run") for member in group.trajectories]
    num_reflections = sum(member.num_reflection_tokens > 0 for member in members)
    assert 0 < sum(row["num_reflections"] for row in rows) == num_reflections
    played = sum(len(turn.completion.token_ids) for member in members for turn in member.own_turns)
    thought = sum(member.num_reflection_tokens for member in members)
    assert sum(row["sampled_tokens"] for row in rows) == played + thought
    printed = capsys.readouterr()
    assert "note: the model has positions for 160 tokens" in " ".join((printed.out + printed.err).split())


def test_async_mode_branches_and_takes_every_group_once(tmp_path: Path) -> None:
    run(tmp_path / "run", *ARPO, "pipeline.mode=async")
    assert sorted(trained_ordinals(tmp_path / "run")) == list(range(18))
    assert sum(row["num_branches"] for row in rows_of(tmp_path / "run")) > 0


def test_failures_of_the_environment_are_no_branches_and_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_environments(monkeypatch, crash=0.2)
    run(
        tmp_path / "run", *ARPO, *REPLAY, "group.max_failure_rate=1", "group.max_retries=0",
    )  # fmt: skip
    groups = groups_of(tmp_path / "run")
    failed = [member for group in groups for member in group.trajectories if not member.status.is_evidence]
    assert failed and all(member.success is None and member.replayed_step is None for member in failed)
    for group in groups:
        for member in group.trajectories:
            assert member.parent < 0 or group.trajectories[member.parent].status.is_evidence


def test_a_record_that_was_changed_is_not_trained_again(tmp_path: Path) -> None:
    made = run(tmp_path / "run", *REPLAY, num_steps=4, checkpoint_every=1)
    for step in recorded_steps(tmp_path / "run"):
        record_path(tmp_path / "run", step).write_bytes(b"")
    with pytest.raises(CorruptDataError, match="is empty"):
        train(replace(made, num_steps=12), tmp_path / "run", resume=True)


# -------------------------------------------------------------------------------------------------------- gradients


@pytest.fixture(scope="module")
def branched() -> TrajectoryGroup:
    """A group of long episodes in which failures were retried."""
    engine = DrawingEngine(("add: 1", "nothing"))
    planner = EnvPlanner(StrategyConfig(branching=RetryOptions(pivot="random")), [TASK], 6, 7)

    async def play() -> TrajectoryGroup:
        player = GroupPlayer(EnvPool(LongCounter, 8), engine.agents(), GroupConfig(group_size=6, num_envs=8), seed=1)
        return await player.play(0, TASK, num_episodes=6, program=in_waves(planner.branch(0)))

    group = asyncio.run(play())
    assert any(member.branch_turn > 2 for member in group.trajectories)
    return group


def samples_of(group: TrajectoryGroup, credit: CreditConfig) -> list[Row]:
    credited = credit_groups([group], credit)
    return build_samples(filter_groups([group], credited, 1, "advantage"))


def gradient(model: Any, samples: list[Row], layout: LayoutKind) -> tuple[torch.Tensor, int]:
    """The gradient of the advantages' sum over log-probabilities, and the number of forwarded tokens."""
    model.zero_grad()
    batches = build_batches(samples, layout=layout, tokens_per_microbatch=100_000 if layout == "packed" else 600)
    for batch in batches:
        logprob, _ = token_logprobs(model, batch, 1.0)
        (-(logprob * batch["advantage"] * batch["loss_weight"]).sum()).backward()  # type: ignore[no-untyped-call]
    taken = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return taken, sum(forwarded(batch) for batch in batches)


def forwarded(batch: Batch) -> int:
    layout = batch.layout
    return layout.input_ids.numel() + (0 if isinstance(layout, Forest) else layout.prefix_ids.numel())


@pytest.mark.parametrize(
    "credit",
    [
        CreditConfig(estimator="grpo"),
        CreditConfig(estimator="grpo", modulators=(SharedPrefixOptions(),)),
        CreditConfig(estimator="grpo", modulators=(R3lOptions(),)),
    ],
    ids=["soft", "hard", "r3l"],
)
def test_the_gradient_of_a_branched_group_is_that_of_its_unrolled_episodes(
    branched: TrajectoryGroup, credit: CreditConfig
) -> None:
    model_config = StableLmConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, max_position_embeddings=2048,
    )  # fmt: skip
    torch.manual_seed(0)
    model = StableLmForCausalLM(model_config).double()
    samples = samples_of(branched, credit)
    unrolled, num_alone = gradient(model, samples, "rows")
    packed, num_packed = gradient(model, samples, "packed")
    torch.testing.assert_close(packed, unrolled, atol=1e-6, rtol=1e-6)
    assert unrolled.abs().max() > 1e-3
    assert num_packed < 0.8 * num_alone, "a shared prefix is forwarded once"


def test_hard_attribution_trains_a_shared_turn_once(branched: TrajectoryGroup) -> None:
    soft = samples_of(branched, CreditConfig(estimator="grpo"))
    hard = samples_of(branched, CreditConfig(estimator="grpo", modulators=(SharedPrefixOptions(),)))
    copied = sum(
        len(turn.completion.token_ids)
        for member in branched.trajectories
        for turn in member.turns[: member.branch_turn]
    )
    num_soft, num_hard = (sum(len(sample.in_batch) for sample in rows) for rows in (soft, hard))
    assert copied > 0 and num_soft - num_hard == copied


# ---------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ((ARPO[0], "pipeline.over_provision=1"), "leave pipeline.over_provision at 0"),
        ((REPLAY[0], "loss.corrections=[]"), "replay train tokens"),
        ((FADING[0], "loss.corrections=[]"), "hints train tokens"),
        (ARPO[1:], "shared_prefix changes nothing where episodes do not branch"),
    ],
)
def test_what_cannot_be_is_refused(overrides: tuple[str, ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        apply_overrides(config(), overrides)


def test_environments_without_what_a_strategy_needs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(SILENT, encoding="utf-8")
    for env, override, match in (
        ("agentgym/TicTacToe-v0", ARPO[0], "would play 2 players"),
        (
            f"{tmp_path}/silent.py:Silent-v0",
            FADING[0],
            "hints and demonstrations are what the oracle would do. .*has no oracle",
        ),
    ):
        overrides = [f"env.id={env}", override, *(['env.kwargs={"opponent": "self"}'] if "Tac" in env else [])]
        with pytest.raises(ConfigError, match=match):
            train(apply_overrides(config(), overrides), tmp_path / "run")
        assert not (tmp_path / "run").exists()


SILENT = """
from agentgym import Task, ToolEnv, register, tool


class Silent(ToolEnv):
    max_turns = 3

    def start(self, task: Task) -> str:
        return "Say it."

    @tool
    def say(self) -> str:
        \"\"\"Say it.\"\"\"
        self.finish(1.0)
        return "Said."


register("Silent-v0", Silent)
"""
