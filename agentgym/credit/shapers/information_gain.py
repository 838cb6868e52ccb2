"""IGPO's information gain: the increase in the probability of the reference answer with each turn.

The trainer computes the log-probabilities. It teacher-forces the reference answer after every turn with the policy that
sampled the rollouts (temperature 1, same chat template), and averages over the answer's tokens.
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
    """Difference of probabilities (paper, default of the code) or of log-probabilities (released train script)."""
    min_answer_tokens: Count = 1
    """References with fewer tokens are ignored, because gains on answers such as "yes" and "no" are noise."""
    gain_at_limit: bool = False
    """Also give the last turn of an episode that hit a limit a gain (our addition; the release does not measure it)."""


@shaper(
    "information_gain",
    paper="Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
    parity="debajoycs98/IGPO@745078b:scrl/llm_agent/generation.py",
    columns=("answer_logprobs",),
)
def information_gain(
    table: TurnTable, options: InformationGainOptions = InformationGainOptions(), *, merged: bool = False
) -> Shaped:
    """Fill the column ``info_gain`` with ``IG_t = f(l_t) - f(l_{t-1})``, where f is exp or the identity.

    ``l_t`` is the mean log-probability of the reference answer after turn t; f is exp with ``prob_diff`` and the
    identity with ``log_prob_diff``. If there are several references, the one that is most likely before the first turn
    is used on all turns, so that the gains telescope. The last turn has no gain (NaN). A trajectory with one entry more
    than it has turns hit a limit before it answered; its last entry is read only with ``gain_at_limit``.

    A trajectory has no gain on any turn, and keeps only its outcome, in three cases, which the diagnostics count:

    * ``info_gain_mismatches``: the number of its entries does not fit the number of its turns;
    * ``info_gain_too_short``: all its references are too short;
    * ``info_gain_not_finite``: a log-probability that it needs is missing or infinite. With ``prob_diff``, -inf after
      the first turn is valid: a probability of 0.

    Needs the column ``answer_logprobs``, and ``answer_lengths`` if ``min_answer_tokens`` is above 1.

    Args:
        table: the turns of the batch.
        options: the kind of difference, and which references and turns count.
        merged: also add the gain to the rewards as a part ``info_gain``, for estimators that do not read the column.

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
    """Return the gains of a trajectory's first turns, or the reason why it has none."""
    if logprobs.ndim != 2 or logprobs.shape[0] not in (num_turns, num_turns + 1):
        return "mismatches"
    # Row t is the state after t turns: num_turns rows give num_turns - 1 gains, none for the turn that answers.
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
