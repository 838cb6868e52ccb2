"""Rollouts as verl's tensors: the layout, the way back, and the loss that verl takes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testkit.spoken_world import Parity, spoken_model

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.actor import Actor, ModelActor
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import read_records, write_records
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.samples import GroupVerdict, TrainingSample, build_samples, judge_groups
from agentgym.trainers.data.verl_export import VerlBatch, to_verl
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.loss import BatchLogprobs, policy_loss, token_logprobs
from agentgym.types import EMPTY_COMPLETION, Segment, Status, TrajectoryGroup

PAD = 0
BLOCKS = ("input_ids", "attention_mask", "position_ids")
FLOATS = (
    "rollout_log_probs", "old_log_probs", "advantages", "returns", "token_level_scores", "token_level_rewards",
)  # fmt: skip


def play() -> tuple[TrajectoryGroup, ...]:
    model, tokenizer = spoken_model()

    async def run() -> tuple[TrajectoryGroup, ...]:
        engine = TorchEngine(model, num_slots=8, max_context_tokens=128)
        renderer = ChatRenderer(tokenizer, "text")

        def make_actor(env: Env, seed: int) -> Actor:
            return ModelActor(engine, renderer, SamplingParams(max_new_tokens=5), seed)

        tasks = list(enumerate(Parity().tasks("train")[:3]))
        return await run_groups(tasks, EnvPool(Parity, 8), make_actor, GroupConfig(group_size=4), seed=0)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def verdicts() -> tuple[GroupVerdict, ...]:
    """Three groups: one with an episode of a segment per turn, one with a lost episode, one that was dropped."""
    first, second, third = play()
    cut = next(t for t in first.trajectories if len(t.turns) > 1)
    segments = tuple(Segment((turn,)) for turn in cut.turns)
    members = tuple(replace(t, segments=segments) if t is cut else t for t in first.trajectories)
    lost = replace(second.trajectories[1], status=Status.ENV_ERROR, success=None)
    groups = (
        replace(first, trajectories=members),
        replace(second, trajectories=(second.trajectories[0], lost, *second.trajectories[2:])),
        replace(third, trajectories=tuple(replace(t, status=Status.TIMEOUT) for t in third.trajectories)),
    )
    return tuple(judge_groups(groups, credit_groups(groups, CreditConfig(estimator="gigpo")), 2, "advantage"))


def without_a_turn(verdicts: Sequence[GroupVerdict]) -> list[GroupVerdict]:
    """The same with the first turn of every episode left out of the loss."""
    made = []
    for verdict in verdicts:
        kept = [float(at > 0) for t in verdict.group.valid for at in range(len(t.turns))]
        made.append(replace(verdict, credit=replace(verdict.credit, loss_weight=np.array(kept))))
    return made


def samples_of(made: VerlBatch) -> list[tuple[Any, ...]]:
    """Token ids, mask, advantages and log-probabilities of each row, padding taken off."""
    rows = []
    width = made.batch["prompts"].size(1)
    for index, attention in enumerate(made.batch["attention_mask"].bool()):
        start = int(attention[:width].sum())
        kept = attention[width:]
        values = {name: made.batch[name][index][kept].tolist() for name in ("response_mask", *FLOATS)}
        nothing = [0] * start
        rows.append(
            (
                tuple(made.batch["input_ids"][index][attention].tolist()),
                (*nothing, *values["response_mask"]),
                (*map(float, nothing), *values["advantages"]),
                (*map(float, nothing), *values["rollout_log_probs"]),
            )
        )
    return rows


def as_row(sample: TrainingSample) -> tuple[Any, ...]:
    return (
        sample.token_ids,
        tuple(sample.loss_mask.tolist()),
        pytest.approx(sample.advantages.tolist(), abs=1e-6),
        pytest.approx(sample.rollout_logprobs.tolist(), abs=1e-6),
    )


def test_the_layout_is_verls(verdicts: tuple[GroupVerdict, ...]) -> None:
    made = to_verl(verdicts, pad_token_id=PAD)
    num_rows, num_prompt = made.batch["prompts"].shape
    num_response = made.batch["responses"].size(1)
    assert num_rows == len(build_samples(verdicts))
    for name in ("prompts", "responses", "response_mask", *BLOCKS):
        assert made.batch[name].dtype == torch.int64, name
    for name in FLOATS:
        assert (made.batch[name].dtype, made.batch[name].shape) == (torch.float32, (num_rows, num_response)), name
    for name in BLOCKS:
        assert made.batch[name].shape == (num_rows, num_prompt + num_response), name
    assert torch.equal(made.batch["input_ids"], torch.cat([made.batch["prompts"], made.batch["responses"]], dim=1))
    prompt_mask = made.batch["attention_mask"][:, :num_prompt]
    response_mask = made.batch["attention_mask"][:, num_prompt:]
    assert (prompt_mask.diff(dim=1) >= 0).all() and prompt_mask[:, -1].all(), "padding on the left"
    assert (response_mask.diff(dim=1) <= 0).all() and response_mask[:, 0].all(), "padding on the right"
    assert (made.batch["prompts"][prompt_mask == 0] == PAD).all()
    assert (made.batch["responses"][response_mask == 0] == PAD).all()
    assert (made.batch["response_mask"] <= response_mask).all(), "what trains is there"
    assert (made.batch["response_mask"] < response_mask).any(), "what the environment said does not train"
    for positions, attention in zip(made.batch["position_ids"], made.batch["attention_mask"].bool(), strict=True):
        assert positions[attention].tolist() == list(range(int(attention.sum())))
        assert positions.min() == 0
    for name in FLOATS:
        outside = made.batch[name][made.batch["response_mask"] == 0]
        assert not outside.any(), name


def test_rows_come_back_as_our_samples(verdicts: tuple[GroupVerdict, ...]) -> None:
    for judged in (verdicts, without_a_turn(verdicts)):
        made = to_verl(judged, pad_token_id=PAD)
        assert samples_of(made) == [as_row(sample) for sample in build_samples(judged)]


def test_turns_without_weight_are_masked_and_keep_their_reward(verdicts: tuple[GroupVerdict, ...]) -> None:
    whole, masked = (to_verl(v, pad_token_id=PAD) for v in (verdicts, without_a_turn(verdicts)))
    assert torch.equal(whole.batch["responses"], masked.batch["responses"]), "the prompt ends where it ended"
    assert masked.batch["response_mask"].sum() < whole.batch["response_mask"].sum()
    assert torch.equal(whole.batch["token_level_scores"], masked.batch["token_level_scores"])


def test_rewards_are_on_the_last_token_of_each_turn(verdicts: tuple[GroupVerdict, ...]) -> None:
    made = to_verl(verdicts, pad_token_id=PAD)
    row = 0
    for verdict in verdicts[:2]:
        for trajectory, credits in zip(verdict.group.trajectories, verdict.to_record().credit, strict=True):
            if not credits:
                continue
            rows = slice(row, row + len(trajectory.segments))
            scores, rewards = made.batch["token_level_scores"][rows], made.batch["token_level_rewards"][rows]
            assert scores.sum().item() == pytest.approx(trajectory.reward, abs=1e-5)
            assert rewards.sum().item() == pytest.approx(sum(turn.shaped_reward for turn in credits), abs=1e-5)
            placed = scores[scores != 0].tolist()
            assert placed == pytest.approx([turn.reward for turn in trajectory.turns if turn.reward], abs=1e-6)
            ends = (
                made.batch["response_mask"][rows].diff(dim=1, append=torch.zeros(rows.stop - rows.start, 1).long()) < 0
            )
            assert ends[scores != 0].all(), "where the turn's tokens end"
            returns = made.batch["returns"][rows][made.batch["response_mask"][rows].bool()].tolist()
            expected = [
                credit.return_to_go
                for turn, credit in zip(trajectory.turns, credits, strict=True)
                for _ in turn.completion.token_ids
            ]
            assert returns == pytest.approx(expected, abs=1e-5)
            row = rows.stop
    assert row == len(made.batch["prompts"])


def test_groups_and_episodes_have_their_names(verdicts: tuple[GroupVerdict, ...]) -> None:
    made = to_verl(verdicts, pad_token_id=PAD)
    names = made.non_tensor_batch
    assert set(names) == {"uid", "traj_uid", "segment", "task_id", "__num_turns__"}
    assert all(len(value) == len(made.batch["prompts"]) for value in names.values())
    assert [names[name].dtype for name in ("uid", "traj_uid", "__num_turns__")] == [np.dtype("O")] * 2 + [np.int32]
    assert set(names["uid"]) == {"0", "1"}, "the third group was dropped"
    assert "1-1" not in names["traj_uid"], "the lost episode has no row"
    assert max(names["segment"]) >= 1
    cut = names["traj_uid"][np.argmax(names["segment"])]
    assert list(names["segment"][names["traj_uid"] == cut]) == list(range(sum(names["traj_uid"] == cut)))


def test_records_are_exported_like_judged_groups(verdicts: tuple[GroupVerdict, ...], tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl.gz"
    write_records(path, [verdict.to_record() for verdict in verdicts])
    one, other = to_verl(verdicts, pad_token_id=PAD), to_verl(read_records(path), pad_token_id=PAD)
    assert all(torch.equal(one.batch[name], other.batch[name]) for name in one.batch)
    assert all((one.non_tensor_batch[name] == other.non_tensor_batch[name]).all() for name in one.non_tensor_batch)


def test_blocks_have_the_width_that_is_asked_for(verdicts: tuple[GroupVerdict, ...]) -> None:
    made = to_verl(verdicts, pad_token_id=PAD, num_prompt_tokens=40, num_response_tokens=60)
    assert made.batch["input_ids"].size(1) == 100
    assert samples_of(made) == [as_row(sample) for sample in build_samples(verdicts)]
    with pytest.raises(UsageError, match=r"a response has .* tokens, more than the 3 of num_response_tokens"):
        to_verl(verdicts, pad_token_id=PAD, num_response_tokens=3)


def test_episodes_of_scripted_policies_have_nothing_to_export(verdicts: tuple[GroupVerdict, ...]) -> None:
    (first, *_) = verdicts
    silent = [
        replace(t, segments=tuple(
            Segment(tuple(replace(turn, prompt_ids=(), completion=EMPTY_COMPLETION) for turn in s.turns))
            for s in t.segments
        ))
        for t in first.group.trajectories
    ]  # fmt: skip
    with pytest.raises(UsageError, match="a row has no sampled token"):
        to_verl([replace(first, group=replace(first.group, trajectories=tuple(silent)))], pad_token_id=PAD)


def test_no_rows_are_an_empty_batch(verdicts: tuple[GroupVerdict, ...]) -> None:
    made = to_verl([verdicts[2]], pad_token_id=PAD, num_prompt_tokens=4, num_response_tokens=6)
    assert made.batch["input_ids"].shape == (0, 10)


# -------------------------------------------------------------------------------------------------------- the loss


def verl_loss(model: Any, batch: dict[str, torch.Tensor], clip_low: float, clip_high: float) -> torch.Tensor:
    """What verl's actor makes of the tensors: the vanilla policy loss, averaged over ``response_mask``."""
    num_response = batch["responses"].size(1)
    logits = model(**{name: batch[name] for name in BLOCKS}).logits[:, -num_response - 1 : -1]
    logprob = torch.log_softmax(logits.float(), -1).gather(-1, batch["responses"][..., None])[..., 0]
    ratio = (logprob - batch["old_log_probs"]).clamp(-20, 20).exp()
    plain, clipped = -batch["advantages"] * ratio, -batch["advantages"] * ratio.clamp(1 - clip_low, 1 + clip_high)
    per_token = torch.maximum(plain, clipped)
    mask = batch["response_mask"]
    return (per_token * mask).sum() / mask.sum()


@pytest.mark.parametrize("has_masked_turns", [False, True])
def test_the_loss_of_the_exported_tensors_is_ours(verdicts: tuple[GroupVerdict, ...], has_masked_turns: bool) -> None:
    judged = without_a_turn(verdicts) if has_masked_turns else list(verdicts)
    config = LossConfig(clip_low=0.2, clip_high=0.28, corrections=())
    model, _ = spoken_model()
    (batch,) = build_batches(build_samples(judged), aggregation=config.mean)
    logprob, entropy = token_logprobs(model, batch, 1.0)
    scores = BatchLogprobs(logprob=logprob, logprob_old=batch.rollout_logprob, entropy=entropy)
    ours = policy_loss(scores, batch, config).loss
    theirs = verl_loss(model, to_verl(judged, pad_token_id=PAD).batch, *config.clip)
    torch.testing.assert_close(theirs, ours, atol=1e-6, rtol=1e-5)
    parameters = list(model.parameters())
    for one, other in zip(torch.autograd.grad(theirs, parameters), torch.autograd.grad(ours, parameters), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
