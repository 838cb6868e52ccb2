"""IGPO's information gain: how much likelier each turn made the reference answer.

The log-probabilities are made elsewhere: by teacher-forcing the answer after every turn with the frozen policy that
sampled the rollouts (temperature 1, same chat template), averaged over the answer's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, add_reward
from agentgym.credit.statistics import trajectories
from agentgym.credit.table import Floats, Ints, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Count
from agentgym.types import RewardRole


@dataclass(frozen=True, slots=True, kw_only=True)
class InformationGainOptions(Options):
    """Keys of the information gain."""

    kind: Literal["information_gain"] = "information_gain"
    mode: Literal["prob_diff", "log_prob_diff"] = "log_prob_diff"
    """Difference of probabilities (paper, code default) or of log-probabilities (released train script)."""
    min_answer_tokens: Count = 1
    """References with fewer tokens are passed over: gains on "yes" and "no" are noise."""
    gain_at_limit: bool = False
    """Also give the last turn of an episode that hit a limit a gain (ours). The release does not measure after it."""


@shaper(
    "information_gain",
    paper="Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
    parity="debajoycs98/IGPO@745078b:scrl/llm_agent/generation.py",
    columns=("answer_logprobs",),
)
def information_gain(
    table: TurnTable, options: InformationGainOptions = InformationGainOptions(), *, merged: bool = False
) -> Shaped:
    """``IG_t = f(l_t) - f(l_{t-1})`` with f = exp (``prob_diff``) or identity (``log_prob_diff``), in ``info_gain``.

    ``l_t`` is the mean log-prob of the reference answer after turn t. Of several references the one that is likeliest
    before the first turn counts on all turns, so that the gains telescope. The last turn has no gain: NaN. A trajectory
    with as many entries as turns plus one hit a limit before it answered; its last entry is read only with
    ``gain_at_limit``.

    A trajectory has no gain at all, and is left with its outcome, if its entries do not match its turns, if its
    references are all too short, or if a log-probability that it needs is missing or infinite. The diagnostics count
    them (``info_gain_mismatches``, ``info_gain_too_short``, ``info_gain_not_finite``). With ``prob_diff``, -inf after
    the first turn is a probability of 0.

    Needs ``answer_logprobs``, and ``answer_lengths`` for a ``min_answer_tokens`` above 1.

    Args:
        merged: also add the gain to the rewards (for estimators that do not keep it apart), as a part ``info_gain``.

    Source: "Information Gain-based Policy Optimization" (``scrl/llm_agent/generation.py``,
    ``verl/utils/reward_score/info_gain.py``, release of February 2026).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 1]], group_of_trajectory=[0])
        >>> table = table.with_columns(answer_logprobs=[[[-1.5], [-0.8], [-0.3]]])
        >>> np.round(information_gain(table).table.info_gain, 6).tolist()
        [0.7, 0.5, nan]
    """
    table.require("answer_logprobs", by="information_gain (composition rule 10: it needs a reference answer)")
    if options.min_answer_tokens > 1:
        table.require("answer_lengths", by="information_gain with min_answer_tokens above 1")
    assert table.answer_logprobs is not None
    view = trajectories(table)
    gain = np.full(len(table), np.nan)
    refused = dict.fromkeys(("mismatches", "too_short", "not_finite"), 0)
    ids = table.trajectory[view.first].tolist()
    for index, first, num_turns in zip(ids, view.first.tolist(), view.num_turns.tolist(), strict=True):
        lengths = None if table.answer_lengths is None else table.answer_lengths[index]
        own = _gains(table.answer_logprobs[index], lengths, num_turns, options)
        if isinstance(own, str):
            refused[own] += 1
        else:
            gain[first : first + len(own)] = own
    shaped = replace(table, info_gain=gain)
    if merged:
        shaped = add_reward(shaped, "info_gain", RewardRole.PROCESS, np.nan_to_num(gain))
    return Shaped(table=shaped, diagnostics={f"info_gain_{why}": float(count) for why, count in refused.items()})


def _gains(
    logprobs: Floats, lengths: Ints | None, num_turns: int, options: InformationGainOptions
) -> Floats | Literal["mismatches", "too_short", "not_finite"]:
    """Return the gains of a trajectory's first turns, or why it has none."""
    if logprobs.ndim != 2 or logprobs.shape[0] not in (num_turns, num_turns + 1):
        return "mismatches"
    measured = logprobs if options.gain_at_limit else logprobs[:num_turns]
    is_long = np.ones(logprobs.shape[1], dtype=np.bool_) if lengths is None else lengths >= options.min_answer_tokens
    if not is_long.any():
        return "too_short"
    start = np.where(is_long & np.isfinite(measured[0]), measured[0], -np.inf)
    chosen = int(start.argmax())
    if not np.isfinite(start[chosen]):
        return "not_finite"
    with np.errstate(invalid="ignore", over="ignore"):
        level = np.exp(measured[:, chosen]) if options.mode == "prob_diff" else measured[:, chosen]
        own = np.diff(level)
    return own if np.isfinite(own).all() else "not_finite"
