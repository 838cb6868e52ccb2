"""Groups and their credit to training rows: one row per segment, so that no prompt is forwarded once per turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentgym.credit.compose import GroupCredit
from agentgym.types import Segment, TrainingSample, TrajectoryGroup, TurnCredit

ZERO = 1e-8


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """Whether a group is trained; ``dropped`` is the reason if not."""

    group: TrajectoryGroup
    credit: GroupCredit
    dropped: str | None


def judge_group(
    group: TrajectoryGroup,
    credit: GroupCredit,
    min_valid: int,
    zero_variance_filter: Literal["advantage", "return", "off"],
) -> GroupVerdict:
    """Leave out groups with too few valid members and groups that teach nothing."""
    dropped = None
    if len(group.valid) < min_valid:
        dropped = "too_few_valid"
    elif (zero_variance_filter == "return" and len({t.reward for t in group.valid}) == 1) or (
        zero_variance_filter == "advantage" and not any(_teaches(turn) for row in credit for turn in row)
    ):
        dropped = "zero_variance"
    return GroupVerdict(group, credit, dropped)


def _teaches(credit: TurnCredit) -> bool:
    return any(abs(advantage) >= ZERO for advantage in credit.token_advantages or (credit.advantage,))


def build_samples(verdicts: Iterable[GroupVerdict]) -> list[TrainingSample]:
    """The training rows of the groups that were kept, in order; turns of ``loss_weight`` 0 are masked.

    A turn's tokens have its advantage, or each its own where credit works on tokens.
    """
    samples: list[TrainingSample] = []
    num_trajectories = 0
    for verdict in verdicts:
        if verdict.dropped is not None:
            continue
        for trajectory, credits in zip(verdict.group.trajectories, verdict.credit, strict=True):
            if not trajectory.status.is_evidence:
                continue
            at = 0
            for segment in trajectory.segments:
                num_turns = len(segment.turns)
                sample = _sample(segment, credits[at : at + num_turns], at, num_trajectories, verdict.group.ordinal)
                samples.append(sample)
                at += num_turns
            num_trajectories += 1
    return samples


def _sample(
    segment: Segment, credits: Sequence[TurnCredit], first_turn: int, trajectory: int, ordinal: int
) -> TrainingSample:
    loss_mask: list[int] = []
    advantages: list[float] = []
    logprobs: list[float] = []
    versions: list[int] = []
    turns: list[int] = []
    for index, (turn, credit) in enumerate(zip(segment.turns, credits, strict=True), first_turn):
        num_prompt, num_sampled = len(turn.prompt_ids), len(turn.completion.token_ids)
        assert credit.loss_weight in (0.0, 1.0), "the configuration refuses components with fractional weights"
        keep = credit.token_keep or (True,) * num_sampled
        of_token = credit.token_advantages or (credit.advantage,) * num_sampled
        assert len(keep) == len(of_token) == num_sampled
        loss_mask += [0] * num_prompt + [int(credit.loss_weight) * is_kept for is_kept in keep]
        advantages += [*[0.0] * num_prompt, *of_token]
        logprobs += [*[0.0] * num_prompt, *turn.completion.logprobs]
        versions += [*[-1] * num_prompt, *turn.completion.policy_versions]
        turns += [-1] * num_prompt + [index] * num_sampled
    return TrainingSample(
        token_ids=segment.token_ids,
        loss_mask=tuple(loss_mask),
        advantages=tuple(advantages),
        rollout_logprobs=tuple(logprobs),
        policy_versions=tuple(versions),
        turns=tuple(turns),
        trajectory=trajectory,
        ordinal=ordinal,
    )
