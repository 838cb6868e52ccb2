"""Credited rollouts as the tensors that verl-style trainers take; verl itself is not imported.

Names, types and shapes are those of verl 0.9.1: ``verl/experimental/agent_loop/agent_loop.py`` (``_postprocess``: the
blocks, masks, positions and ``rollout_log_probs``), ``verl/trainer/ppo/ray_trainer.py`` (``token_level_scores``,
``token_level_rewards``, ``old_log_probs``, ``advantages``, ``returns``, ``uid``), ``verl/utils/model.py`` (positions)
and ``verl/protocol.py`` (``DataProto.from_dict``). ``traj_uid`` is verl-agent's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentgym.rollout.record import GroupRecord
from agentgym.trainers.data.padded import pad_rows, prompt_length
from agentgym.trainers.data.samples import GroupVerdict, TrainingSample, build_samples
from agentgym.types import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlBatch:
    """The two dicts of verl's ``DataProto``, one row per segment (``B``); integers are int64, floats float32.

    ===================== ============ ==================================================================
    ``prompts``           ``[B, P]``   token ids, padded on the left
    ``responses``         ``[B, R]``   sampled tokens and what the environment said between them
    ``input_ids``         ``[B, P+R]`` both
    ``attention_mask``    ``[B, P+R]`` 1 on tokens
    ``position_ids``      ``[B, P+R]`` counted over tokens, from 0
    ``response_mask``     ``[B, R]``   1 on sampled tokens that train
    ``rollout_log_probs`` ``[B, R]``   of the engine, under the distribution it sampled from
    ``old_log_probs``     ``[B, R]``   the same (verl's bypass mode); drop it and verl recomputes it
    ``advantages``        ``[B, R]``   of the turn, on each of its sampled tokens
    ``returns``           ``[B, R]``   likewise
    ``token_level_scores`` ``[B, R]``  the turn's reward, on its last sampled token
    ``token_level_rewards`` ``[B, R]`` the turn's shaped reward, there
    ===================== ============ ==================================================================
    """

    batch: dict[str, Tensor]
    non_tensor_batch: dict[str, NDArray[np.object_]]
    """``uid`` of the group, ``traj_uid`` of the episode, ``segment`` in it, ``task_id``, and ``__num_turns__``."""


def to_verl(
    groups: Iterable[GroupVerdict | GroupRecord],
    *,
    pad_token_id: int,
    num_prompt_tokens: int = 0,
    num_response_tokens: int = 0,
) -> VerlBatch:
    """Judged groups, or the records of a run, as a verl batch.

    What the infrastructure spoilt and groups that were dropped have no rows; turns of ``loss_weight`` 0 are masked.

    Args:
        groups: what :func:`~agentgym.trainers.data.samples.judge_groups` or
            :func:`~agentgym.rollout.record.read_records` gave.
        pad_token_id: the tokenizer's.
        num_prompt_tokens: verl's ``prompt_length``; 0 takes the longest prompt of the batch.
        num_response_tokens: verl's ``response_length``; 0 takes the longest response.

    Raises:
        UsageError: a row is longer than what was asked for (verl would cut it), or has no sampled token.

    Example:
        >>> DataProto.from_dict(tensors=made.batch, non_tensors=made.non_tensor_batch)  # doctest: +SKIP
    """
    rows = [row for group in groups for row in _rows(group)]
    padded = pad_rows(
        [row.sample for row in rows],
        pad_token_id,
        num_prompt_tokens=num_prompt_tokens,
        num_response_tokens=num_response_tokens,
    )
    attention = torch.cat([padded.prompt_mask, padded.response_attention], dim=1)
    returns, scores, rewards = (torch.zeros_like(padded.advantages) for _ in range(3))
    for index, row in enumerate(rows):
        stop = -prompt_length(row.sample)
        for at, turn in enumerate(row.segment.turns, row.first_turn):
            start = stop + len(turn.prompt_ids)
            stop = start + len(turn.completion.token_ids)
            returns[index, start:stop] = float(row.verdict.credit.return_to_go[at])
            scores[index, stop - 1] = turn.reward
            rewards[index, stop - 1] = float(row.verdict.credit.shaped_reward[at])
    return VerlBatch(
        batch={
            "prompts": padded.prompts,
            "responses": padded.responses,
            "input_ids": torch.cat([padded.prompts, padded.responses], dim=1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
            "response_mask": padded.loss_mask,
            "rollout_log_probs": padded.rollout_logprobs,
            "old_log_probs": padded.rollout_logprobs.clone(),
            "advantages": padded.advantages,
            "returns": returns,
            "token_level_scores": scores,
            "token_level_rewards": rewards,
        },
        non_tensor_batch={
            "uid": _objects([str(row.verdict.group.ordinal) for row in rows]),
            "traj_uid": _objects([f"{row.verdict.group.ordinal}-{row.member}" for row in rows]),
            "segment": _objects([row.segment_index for row in rows]),
            "task_id": _objects([row.verdict.group.task.id for row in rows]),
            "__num_turns__": np.array([len(row.segment.turns) for row in rows], dtype=np.int32),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    sample: TrainingSample
    verdict: GroupVerdict
    member: int
    segment_index: int
    segment: Segment
    first_turn: int
    """Row of the segment's first turn in the verdict's credit."""


def _rows(judged: GroupVerdict | GroupRecord) -> Iterator[_Row]:
    if judged.dropped is not None:
        return
    verdict = GroupVerdict.of_record(judged) if isinstance(judged, GroupRecord) else judged
    samples = iter(build_samples([verdict]))
    first_turn = 0
    for member, trajectory in enumerate(verdict.group.trajectories):
        for index, segment in enumerate(trajectory.segments if trajectory.status.is_evidence else ()):
            yield _Row(
                sample=next(samples),
                verdict=verdict,
                member=member,
                segment_index=index,
                segment=segment,
                first_turn=first_turn,
            )
            first_turn += len(segment.turns)


def _objects(values: list[str] | list[int]) -> NDArray[np.object_]:
    return np.array(values, dtype=object)
