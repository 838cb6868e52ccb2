"""IGPO's information gain: how much likelier each turn made the reference answer.

The log-probabilities are made elsewhere: by teacher-forcing the answer after every turn with the frozen policy that
sampled the rollouts (temperature 1, same chat template), averaged over the answer's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import add_reward
from agentgym.credit.shapers.shaped import Shaped
from agentgym.credit.statistics import trajectories
from agentgym.credit.table import Floats, Ints, TurnTable
from agentgym.plugins import Options
from agentgym.types import RewardRole


@dataclass(frozen=True, slots=True, kw_only=True)
class InformationGainOptions(Options):
    """Keys of the information gain."""

    kind: Literal["information_gain"] = "information_gain"
    mode: Literal["prob_diff", "log_prob_diff"] = "log_prob_diff"
    """Difference of probabilities (paper, code default) or of log-probabilities (released train script)."""
    min_answer_tokens: int = 1
    """References with fewer tokens are passed over: gains on "yes" and "no" are noise."""

    def __post_init__(self) -> None:
        self.check(is_ok=self.min_answer_tokens >= 1, message="min_answer_tokens must be at least 1")


@shaper(
    "information_gain",
    paper="Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
    status="verified",
    columns=("answer_logprobs",),
)
def information_gain(
    table: TurnTable, options: InformationGainOptions | None = None, *, merged: bool = False
) -> Shaped:
    """``IG_t = f(l_t) - f(l_{t-1})`` with f = exp (``prob_diff``) or identity (``log_prob_diff``), in ``info_gain``.

    ``l_t`` is the mean log-prob of the reference answer after turn t. Of several references the one that is likeliest
    before the first turn counts on all turns, so that the gains telescope. A turn that no observation followed (the
    answer) has no gain: NaN. A trajectory with as many entries as turns plus one was cut before it answered, and its
    last turn has a gain too.

    A trajectory whose entries do not match its turns, or whose references are all too short, has no gain at all and is
    left with its outcome; the diagnostics count both (``info_gain_mismatches``, ``info_gain_too_short``).

    Needs ``answer_logprobs``, and ``answer_lengths`` for a ``min_answer_tokens`` above 1.

    Args:
        merged: also add the gain to the rewards (for estimators that do not keep it apart), as a part ``info_gain``.

    Source: "Information Gain-based Policy Optimization" (``verl/utils/reward_score/info_gain.py``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 1]], group_of_trajectory=[0])
        >>> table = table.with_columns(answer_logprobs=[[[-1.5], [-0.8], [-0.3]]])
        >>> np.round(information_gain(table).table.info_gain, 6).tolist()
        [0.7, 0.5, nan]
    """
    options = InformationGainOptions() if options is None else options
    table.require("answer_logprobs", by="information_gain (composition rule 10: it needs a reference answer)")
    if options.min_answer_tokens > 1:
        table.require("answer_lengths", by="information_gain with min_answer_tokens above 1")
    assert table.answer_logprobs is not None
    view = trajectories(table)
    gain = np.full(len(table), np.nan)
    num_mismatches = num_too_short = 0
    ids = table.trajectory[view.first].tolist()
    for index, first, num_turns in zip(ids, view.first.tolist(), view.num_turns.tolist(), strict=True):
        logprobs = table.answer_logprobs[index]
        if logprobs.ndim != 2 or logprobs.shape[0] not in (num_turns, num_turns + 1):
            num_mismatches += 1
            continue
        lengths = None if table.answer_lengths is None else table.answer_lengths[index]
        chosen = _reference(logprobs, lengths, options.min_answer_tokens)
        if chosen is None:
            num_too_short += 1
            continue
        level = np.exp(logprobs[:, chosen]) if options.mode == "prob_diff" else logprobs[:, chosen]
        gain[first : first + len(level) - 1] = np.diff(level)
    shaped = replace(table, info_gain=gain)
    if merged:
        shaped = add_reward(shaped, "info_gain", RewardRole.PROCESS, np.nan_to_num(gain))
    diagnostics = {"info_gain_mismatches": float(num_mismatches), "info_gain_too_short": float(num_too_short)}
    return Shaped(table=shaped, diagnostics=diagnostics)


def _reference(logprobs: Floats, lengths: Ints | None, min_tokens: int) -> int | None:
    """The reference that is likeliest at the start among those long enough."""
    start = logprobs[0].copy()
    if lengths is not None:
        start[lengths < min_tokens] = -np.inf
    return int(start.argmax()) if len(start) and np.isfinite(start).any() else None
