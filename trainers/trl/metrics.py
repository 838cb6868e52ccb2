"""What a batch of rollouts adds to TRL's log and to its table of completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from torch import Tensor

from agentgym.trainers.data.samples import GroupVerdict
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.types import Json, Message, Trajectory


def rollout_metrics(verdicts: Sequence[GroupVerdict]) -> dict[str, float]:
    """TRL's ``reward`` and ``reward_std`` over the valid episodes, and ours under ``rollouts/``.

    NaN, which TRL leaves out of its averages, where no episode is valid.
    """
    returns = [t.reward or 0.0 for verdict in verdicts for t in verdict.group.valid]
    lengths = [
        sum(len(turn.completion.token_ids) for turn in t.turns) for verdict in verdicts for t in verdict.group.valid
    ]
    return {
        "reward": fmean(returns) if returns else math.nan,
        "reward_std": stdev(returns) if len(returns) > 1 else math.nan,
        "completions/mean_length": fmean(lengths) if lengths else math.nan,
        **{f"rollouts/{name}": value for name, value in describe_rollouts(verdicts).items()},
    }


def gap_metrics(logprob_old: Tensor, logprob_rollout: Tensor, mask: Tensor) -> dict[str, float]:
    """Difference between the trainer's and the engine's log-probabilities of the trained tokens, by TRL's names."""
    gap = (logprob_old - logprob_rollout).abs()[mask.bool()]
    prefix = "sampling/sampling_logp_difference"
    if not gap.numel():
        return {f"{prefix}/mean": math.nan, f"{prefix}/max": math.nan}
    return {f"{prefix}/mean": gap.mean().item(), f"{prefix}/max": gap.max().item()}


def completion_table(verdicts: Sequence[GroupVerdict]) -> dict[str, list[Json]]:
    """Columns of TRL's table of completions, a row per episode; lost ones have a reward of NaN."""
    episodes = [
        (trajectory, fmean(turn.advantage for turn in credit) if credit else 0.0)
        for verdict in verdicts
        for trajectory, credit in zip(verdict.group.trajectories, verdict.to_record().credit, strict=True)
    ]
    return {
        "prompt": [_messages(trajectory.observation) for trajectory, _ in episodes],
        "completion": [_said(trajectory) for trajectory, _ in episodes],
        "reward": [math.nan if trajectory.reward is None else trajectory.reward for trajectory, _ in episodes],
        "advantage": [advantage for _, advantage in episodes],
    }


def _said(trajectory: Trajectory) -> list[dict[str, str]]:
    return [row for turn in trajectory.turns for row in _messages([turn.action, *turn.replies])]


def _messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.text} for message in messages]
