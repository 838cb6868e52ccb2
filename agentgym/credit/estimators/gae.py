"""Advantages from a critic: GAE over tokens, over turns or over both, and ArCHer's advantage.

The critic's values are columns of the table. Its regression targets are part of the result: ``return_to_go`` per turn,
``token_return`` per token. Whitening runs after GAE and does not change the targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.estimators.reinforce_pp import ends_of_token_runs, token_rewards
from agentgym.credit.statistics import (
    ends_of_trajectories,
    finite_column,
    group_statistics,
    mean_over_tokens,
    suffix_sums,
    whiten,
)
from agentgym.credit.table import Floats, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Discounts(Options):
    gamma: Fraction = 1.0
    lam: Fraction = 0.95
    whitened: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGaeOptions(_Discounts):
    """Keys of token-level GAE: discount per token, lambda, whitening over tokens."""

    kind: Literal["token_gae"] = "token_gae"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoadOptions(Options):
    """Keys of POAD: discounts inside and between actions, lambda, normalisation over tokens."""

    kind: Literal["poad"] = "poad"
    gamma_action: Fraction = 0.95
    """Between the last token of an action and the first of the next."""
    gamma_token: Fraction = 1.0
    """Between the tokens of an action. Below 1, the optimal policy depends on how an action is split into tokens."""
    lam: Fraction = 0.95
    whitened: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGaeOptions(_Discounts):
    """Keys of turn-level GAE: discount per turn, lambda, whitening."""

    kind: Literal["turn_gae"] = "turn_gae"
    gamma: float = 0.99
    whitening_unit: Literal["token", "turn"] = "token"
    """Unit of the whitening: sampled tokens (column ``num_tokens``; VAGEN's code) or turns (StepPO's)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BiLevelGaeOptions(_Discounts):
    """Keys of bi-level GAE: discount per token, lambda, discount per turn, whitening over tokens."""

    kind: Literal["bi_level_gae"] = "bi_level_gae"
    lam: float = 1.0
    gamma_high: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcherOptions(Options):
    """Keys of ArCHer's advantage."""

    kind: Literal["archer"] = "archer"
    gamma: float = 0.95


@estimator(
    "token_gae",
    paper="High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    parity="verl-project/verl@1dda039:verl/trainer/ppo/core_algos.py",
    by_authors=False,
    options=TokenGaeOptions,
    granularity="token",
    columns=("num_tokens", "token_value"),
)
def token_gae(table: TurnTable, *, gamma: float = 1.0, lam: float = 0.95, whitened: bool = True) -> TurnAdvantages:
    """GAE over sampled tokens; observation tokens are skipped.

    ``delta_k = r_k + gamma V_{k+1} - V_k``, ``A_k = delta_k + gamma lam A_{k+1}``, where k counts the sampled tokens
    of a trajectory across its turns. Needs the columns ``num_tokens`` and ``token_value``.

    Raises:
        ConfigError: a column is missing or not finite, or a turn has no tokens.

    Source: "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equation 16; verl
    ``compute_gae_advantage_return``; RAGEN/VAGEN ``ragen/trainer/core_algos.py``.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1]], group_of_trajectory=[0])
        >>> table = table.with_columns(num_tokens=[2, 2], token_value=[0.5, 0.4, 0.6, 0.8])
        >>> np.round(token_gae(table, whitened=False).token_advantage, 6).tolist()
        [0.441975, 0.5705, 0.39, 0.2]
    """
    value = finite_column(table, "token_value", by="token_gae")
    rewards, is_last = token_rewards(table, by="token_gae"), ends_of_token_runs(table)
    return _token_result(value, _gae(rewards, value, is_last, gamma, lam), table, whitened)


@estimator(
    "poad",
    paper="Reinforcing Language Agents via Policy Optimization with Action Decomposition",
    parity="morning9393/ADRL@5ec1aa5:mappo/utils/language_buffer.py",
    options=PoadOptions,
    granularity="token",
    columns=("num_tokens", "token_value"),
)
def poad(
    table: TurnTable,
    *,
    gamma_action: float = 0.95,
    gamma_token: float = 1.0,
    lam: float = 0.95,
    whitened: bool = True,
) -> TurnAdvantages:
    """Compute GAE over tokens with one discount inside actions and another between them.

    A token inside an action is backed up from the next token's value, ``delta_k = gamma_token V_{k+1} - V_k``. An
    action's last token is backed up from the next action's first, ``delta_k = r_t + gamma_action V_{k+1} - V_k``. Then
    ``A_k = delta_k + gamma lam A_{k+1}`` with the same discount. Needs the columns ``num_tokens`` and ``token_value``.

    Whitening divides by the standard deviation with ``ddof=0`` plus 1e-8, as the release does. The release leaves
    advantages of exactly 0 out of the mean and the deviation, because its rows are padded. Here no row is.

    Source: "Reinforcing Language Agents via Policy Optimization with Action Decomposition"
    (``mappo/utils/language_buffer.py``, ``batch_process_tppo``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1]], group_of_trajectory=[0])
        >>> table = table.with_columns(num_tokens=[2, 2], token_value=[0.5, 0.4, 0.6, 0.8])
        >>> np.round(poad(table, whitened=False).token_advantage, 6).tolist()
        [0.395876, 0.521975, 0.39, 0.2]
    """
    value = finite_column(table, "token_value", by="poad")
    rewards, is_last = token_rewards(table, by="poad"), ends_of_token_runs(table)
    # gamma[k] discounts the value that follows token k: only after an action's last token is that the next action's.
    gamma = np.full(len(rewards), gamma_token)
    gamma[np.cumsum(table.column("num_tokens", by="poad")) - 1] = gamma_action
    advantage = _gae(rewards, value, is_last, gamma, lam)
    credited = _token_result(value, advantage, table, whitened=False)
    if not whitened or not len(advantage):
        return credited
    # Not whiten(): the release divides by std + eps with ddof=0, verl by sqrt(var + eps) with ddof=1.
    of = group_statistics(advantage, np.zeros(len(advantage), dtype=np.int64), ddof=0)
    final = (advantage - of.mean) / (of.std + 1e-8)
    return replace(credited, advantage=mean_over_tokens(table, final), token_advantage=final)


@estimator(
    "turn_gae",
    paper="Turn-PPO: Turn-Level Advantage Estimation with PPO for Improved Multi-Turn RL in Agentic LLMs",
    parity="mll-lab-nu/VAGEN@2936322:vagen/custom_advantage/no_concat_gae.py",
    by_authors=False,
    options=TurnGaeOptions,
    granularity="turn",
    tells_agents=True,
    optional_columns=("moment", "invocation"),
    columns=lambda options: (
        "value",
        *(("num_tokens",) if options.whitened and options.whitening_unit == "token" else ()),
    ),
)
def turn_gae(
    table: TurnTable,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
    whitened: bool = True,
    whitening_unit: str = "token",
) -> TurnAdvantages:
    """GAE with one value per turn, whitened over the batch's tokens.

    ``delta_t = r_t + gamma V_{t+1} - V_t``, ``A_t = delta_t + gamma lam A_{t+1}``. Needs the column ``value``, read
    at the last prompt token before the turn. ``return_to_go`` is the critic's target ``A + V``.

    t counts the turns of all agents of a trajectory in time, by the column ``moment``: a sub-agent's turns come between
    the turn that asked it and the next one, so each agent's value bootstraps the one who acts before it, as in MARFT.
    The reward of a turn that asked others comes after theirs (column ``invocation``), so that they share in it.

    Args:
        gamma: discount per turn.
        lam: lambda of GAE.
        whitened: subtract the batch's mean and divide by its deviation.
        whitening_unit: ``token`` counts each turn as often as it has tokens (column ``num_tokens``), ``turn`` once.

    Source: "Turn-PPO: Turn-Level Advantage Estimation with PPO for Improved Multi-Turn RL in Agentic LLMs" (abstract);
    the recursion is GAE's, the whitening VAGEN's (``vagen/custom_advantage/no_concat_gae.py``, ``no_concat_gae``); the
    order of agents is that of "MARFT: Multi-Agent Reinforcement Fine-Tuning". With ``whitening_unit=turn`` it is the
    advantage of "StepPO: Step-Aligned Policy Optimization for Agentic Reinforcement Learning" (``arft/core_algos.py``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0.2, 1]], group_of_trajectory=[0]).with_columns(value=[0.5, 0.6])
        >>> np.round(turn_gae(table, whitened=False).advantage, 6).tolist()
        [0.6702, 0.4]
    """
    value = finite_column(table, "value", by="turn_gae")
    # trajectories stay where they are, so that their ends do, too
    in_time = slice(None) if table.moment is None else np.lexsort((table.moment, table.trajectory))
    is_last = ends_of_trajectories(table)
    reward = table.reward[in_time]
    if table.moment is not None and table.invocation is not None:
        reward = _after_those_asked(reward, table.invocation[in_time] < 0, is_last)
    advantage = np.empty(len(table))
    advantage[in_time] = _gae(reward, value[in_time], is_last, gamma, lam)
    target = advantage + value  # before whitening: the critic regresses on returns, not on normalised values
    if whitened and whitening_unit == "token":
        advantage = whiten(advantage, table.column("num_tokens", by="turn_gae with whitening_unit='token'"))
    elif whitened:
        advantage = whiten(advantage)
    return TurnAdvantages(advantage=advantage, return_to_go=target)


@estimator(
    "bi_level_gae",
    paper="RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning",
    parity="RAGEN-AI/RAGEN@5eb79b8:ragen/trainer/core_algos.py",
    options=BiLevelGaeOptions,
    granularity="token",
    columns=("num_tokens", "token_value"),
)
def bi_level_gae(
    table: TurnTable, *, gamma: float = 1.0, lam: float = 1.0, gamma_high: float = 0.95, whitened: bool = True
) -> TurnAdvantages:
    """GAE over turns first, then over the tokens inside each turn.

    Stage 1 works on the last token p_j of each turn: ``delta_j = r_j + gamma_high V_{p_{j+1}} - V_{p_j}`` and
    ``A_j = delta_j + gamma_high lam A_{j+1}``. Stage 2 gives p_j the reward ``A_j + V_{p_j}`` and runs token GAE
    inside each turn separately. The release finds turn ends by their nonzero rewards; here the table defines them, so
    turns of reward 0 count. Needs the columns ``num_tokens`` and ``token_value``.

    Source: RAGEN/VAGEN ``ragen/trainer/core_algos.py`` (``compute_bi_level_gae_advantage_return``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0.2, 1]], group_of_trajectory=[0])
        >>> table = table.with_columns(num_tokens=[3, 2], token_value=[0.1, 0.2, 0.3, 0.4, 0.5])
        >>> np.round(bi_level_gae(table, lam=0.95, whitened=False).token_advantage, 6).tolist()
        [0.940691, 0.884937, 0.82625, 0.575, 0.5]
    """
    num_tokens = table.column("num_tokens", by="bi_level_gae")
    value = finite_column(table, "token_value", by="bi_level_gae")
    rewards = token_rewards(table, by="bi_level_gae")
    last_token = np.cumsum(num_tokens) - 1
    turn_value = value[last_token]
    high = _gae(table.reward, turn_value, ends_of_trajectories(table), gamma_high, lam)
    # Token GAE subtracts V at the last token and has no value after it, so this reward makes A there equal to `high`.
    rewards[last_token] = high + turn_value
    is_turn_end = np.zeros(len(rewards), dtype=np.bool_)
    is_turn_end[last_token] = True
    return _token_result(value, _gae(rewards, value, is_turn_end, gamma, lam), table, whitened)


@estimator(
    "archer",
    paper="ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL",
    status="experimental",
    options=ArcherOptions,
    granularity="turn",
    columns=("q_value", "value"),
)
def archer(table: TurnTable, *, gamma: float = 0.95) -> TurnAdvantages:
    """Experimental (reconstructed): ``A_t = Q(s_t, a_t) - V(s_t)``, and the one-step target of the critic.

    ``return_to_go`` is ``r_t + gamma (1 - done) V(s_{t+1})``. Needs the columns ``q_value`` and ``value``, both from
    the target network. With several critics (``[N, C]``) the minimum of their Q values counts.

    Source: "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL"; the default of gamma is ours.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1]], group_of_trajectory=[0])
        >>> credited = archer(table.with_columns(q_value=[0.7, 0.9], value=[0.5, 0.8]))
        >>> np.round(credited.advantage, 6).tolist(), np.round(credited.return_to_go, 6).tolist()
        ([0.2, 0.1], [0.76, 1.0])
    """
    table.require("q_value", "value", by="archer")
    q_values, value = (finite_column(table, name, by="archer") for name in ("q_value", "value"))
    # The minimum of several critics counters the overestimation of Q (clipped double Q-learning).
    q_value = q_values if q_values.ndim == 1 else q_values.min(axis=1)
    following = _following(value, ends_of_trajectories(table))
    return TurnAdvantages(advantage=q_value - value, return_to_go=table.reward + gamma * following)


def _gae(reward: Floats, value: Floats, is_last: np.ndarray, gamma: Floats | float, lam: float) -> Floats:
    delta = reward + gamma * _following(value, is_last) - value
    return suffix_sums(delta, gamma * lam, is_last)


def _after_those_asked(reward: Floats, is_main: np.ndarray, is_last: np.ndarray) -> Floats:
    """Move each reward of the main agent to the last turn before its next one: it comes when those it asked are done.

    Example:
        >>> main = np.array([True, True, False, True])
        >>> _after_those_asked(np.array([0.0, 1.0, 0.5, 2.0]), main, np.array([False] * 3 + [True])).tolist()
        [0.0, 0.0, 1.5, 2.0]
    """
    ends = is_last | np.append(is_main[1:], True)[: len(is_last)]
    stays = np.where(is_main, 0.0, reward)
    # a unit is a turn of the main agent with the turns of those it asked
    unit = np.cumsum(ends) - ends
    of_main = np.bincount(unit, np.where(is_main, reward, 0.0), minlength=int(ends.sum()))
    return stays + np.where(ends, of_main[unit], 0.0)


def _following(value: Floats, is_last: np.ndarray) -> Floats:
    """Return the next entry of the same run, and 0 at its end: a finished trajectory has no value."""
    return np.where(is_last, 0.0, np.append(value[1:], 0.0)[: len(value)])


def _token_result(value: Floats, advantage: Floats, table: TurnTable, whitened: bool) -> TurnAdvantages:
    returns = advantage + value
    final = whiten(advantage) if whitened else advantage
    return TurnAdvantages(
        advantage=mean_over_tokens(table, final),
        return_to_go=mean_over_tokens(table, returns),
        token_advantage=final,
        token_return=returns,
    )
