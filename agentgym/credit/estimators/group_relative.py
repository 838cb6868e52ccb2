"""Estimators that compare trajectories within their group and give all turns of a trajectory the same advantage.

All read one number per trajectory, its return S_i, and differ in the baseline and the scale. Each trajectory counts
once in the statistics, however many turns or segments it has. Flow-GRPO is the exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.estimators.grpo import grpo
from agentgym.credit.statistics import (
    dense,
    group_statistics,
    per_trajectory,
    returns_to_go,
    trajectories,
    whiten,
    zscore,
)
from agentgym.credit.table import Floats, Ints, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction

MAD_EPS = 1e-3
"""MC-GRPO's epsilon: it is added to the median absolute deviation (MAD) before the division."""
MOVING = 1e-6
"""MC-GRPO's threshold: an advantage of at most this size counts as 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGrpoOptions(Options):
    """Keys of Flow-GRPO."""

    kind: Literal["flow_grpo"] = "flow_grpo"
    statistics_unit: Literal["turn", "trajectory"] = "turn"
    """Unit of mean and deviation. With ``turn``, as in the released code, long trajectories count more."""
    agents: Literal["main", "all"] = "main"
    """Turns that train if there are sub-agents: only the main agent's, as in the released code, or all agents'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McGrpoOptions(Options):
    """Keys of MC-GRPO."""

    kind: Literal["mc_grpo"] = "mc_grpo"
    least_mad: Fraction = 0.1
    """A MAD below this share of the group's range does not scale the group, and the range does (ours). With 0, as in
    the release, a MAD of 0 divides by 1e-3: rewards 1, 0, 0, 0, 0 give the first rollout an advantage of 5000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupoOptions(Options):
    """Keys of SUPO."""

    kind: Literal["supo"] = "supo"
    statistics_unit: Literal["trajectory", "segment"] = "trajectory"
    """``segment`` is refused (composition rule 13)."""
    mask_overlong: bool = True
    """Leave trajectories that hit a limit without an answer out of the loss, but keep them in the statistics."""


@estimator(
    "dr_grpo",
    paper="Understanding R1-Zero-Like Training: A Critical Perspective",
    parity="verl-project/verl@1dda039:verl/trainer/ppo/core_algos.py",
    by_authors=False,
    compares_groups=True,
)
def dr_grpo(table: TurnTable) -> TurnAdvantages:
    """``A_i = S_i - mean``: GRPO without the division by the standard deviation.

    The paper also replaces the loss's division by the length of a sequence: set ``loss.aggregation`` to
    ``seq-mean-token-sum-norm``.

    Source: "Understanding R1-Zero-Like Training: A Critical Perspective".

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [0.5], [2.0]], group_of_trajectory=[0, 0, 0, 0])
        >>> dr_grpo(table).advantage.tolist()
        [0.125, -0.875, -0.375, 1.125]
    """
    return grpo(table, norm="mean_norm")


@estimator(
    "rloo",
    paper="Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    parity="verl-project/verl@1dda039:verl/trainer/ppo/core_algos.py",
    by_authors=False,
    compares_groups=True,
)
def rloo(table: TurnTable) -> TurnAdvantages:
    """``A_i = S_i - mean of the others = n / (n - 1) * (S_i - mean)``; 0 in a group of one.

    LOOP is this estimator with the loss ``ppo_clip`` per token, aggregation ``token-mean`` and no KL penalty.

    Source: "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs";
    LOOP: "Reinforcement Learning for Long-Horizon Interactive LLM Agents".

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [0.5], [2.0]], group_of_trajectory=[0, 0, 0, 0])
        >>> np.round(rloo(table).advantage, 6).tolist()
        [0.166667, -1.166667, -0.5, 1.5]
    """
    score, group, of_row = _scores(table)
    statistics = group_statistics(score, group)
    # The leave-one-out baseline without a loop: S_i minus the mean of the others is n / (n - 1) * (S_i - mean).
    factor = statistics.count / np.maximum(statistics.count - 1, 1)
    return _spread(table, (factor * (score - statistics.mean))[of_row])


estimator(
    "loop",
    paper="Reinforcement Learning for Long-Horizon Interactive LLM Agents",
    status="reproduced",
    compares_groups=True,
    test="tests/credit/test_estimators.py::test_rloo",
)(rloo)


@estimator(
    "opo",
    paper="On-Policy RL with Optimal Reward Baseline",
    parity="verl-project/verl@1dda039:verl/trainer/ppo/core_algos.py",
    by_authors=False,
    compares_groups=True,
    columns=("num_tokens",),
)
def opo(table: TurnTable) -> TurnAdvantages:
    """``A_i = S_i - sum(len * S) / sum(len)``: the baseline weighs trajectories by their sampled tokens.

    Needs the column ``num_tokens``. In a group without tokens all members have the same weight.

    Source: "On-Policy RL with Optimal Reward Baseline"; verl ``core_algos.py`` (``compute_opo_outcome_advantage``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0]], group_of_trajectory=[0, 0])
        >>> opo(table.with_columns(num_tokens=[1, 3])).advantage.tolist()
        [0.75, -0.25]
    """
    num_tokens = table.column("num_tokens", by="opo")
    score, group, of_row = _scores(table)
    codes = dense(group)
    # The paper approximates the variance-optimal baseline by weighting with the response length: the squared norm of
    # a sequence's gradient grows about linearly with its length.
    length = per_trajectory(table, num_tokens)
    length = np.where(np.bincount(codes, weights=length)[codes] > 0, length, 1.0)
    baseline = np.bincount(codes, weights=length * score) / np.bincount(codes, weights=length)
    return _spread(table, (score - baseline[codes])[of_row])


@estimator(
    "reinforce_pp_baseline",
    paper="REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models",
    parity="verl-project/verl@1dda039:verl/trainer/ppo/core_algos.py",
    by_authors=False,
    compares_groups=True,
    columns=("num_tokens",),
)
def reinforce_pp_baseline(table: TurnTable) -> TurnAdvantages:
    """``A = whiten(S_i - mean)``: subtract the group's mean, then whiten over all sampled tokens of the batch.

    Needs the column ``num_tokens``, because each turn counts once per token in the whitening.

    Source: "REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models"; verl
    ``compute_reinforce_plus_plus_baseline_outcome_advantage``.

    Raises:
        ConfigError: the batch has exactly one token.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0]], group_of_trajectory=[0, 0])
        >>> np.round(reinforce_pp_baseline(table.with_columns(num_tokens=[2, 3])).advantage, 6).tolist()
        [1.095445, -0.730297]
    """
    table.require("num_tokens", by="reinforce_pp_baseline")
    centred = dr_grpo(table).advantage
    return _spread(table, whiten(centred, table.num_tokens))


@estimator(
    "mc_grpo",
    paper="Median-Centered Group Relative Policy Optimization for Small-Rollout RL",
    parity="lotusroot-kim/MC-GRPO@da07745:src/open_r1/grpo_trainer_gsm.py",
    options=McGrpoOptions,
    compares_groups=True,
    limits="the release has least_mad=0, and advantages in the thousands where most rewards of a group are equal",
)
def mc_grpo(table: TurnTable, *, least_mad: float = 0.1) -> TurnAdvantages:
    """``A_i = (S_i - median) / (MAD + 1e-3)``, rescaled for the rollouts whose advantage is 0.

    MAD is the median of ``|S - median|``. Both are lower medians, as in ``torch.median``: in a group of even size the
    lower of the two middle values. Advantages above 1e-6 in size are multiplied by the group size over their number,
    so rollouts with advantage 0 do not dilute the group's gradient. The first rollout whose reward is the median gets
    ``loss_weight`` 0. The paper uses groups of G + 1 rollouts with G even.

    The released formula is unstable in groups where most rewards are equal: MAD is 0 there, and the other rollouts get
    advantages of 1000 and more. Rewards of 0 and 1 always are such groups, so the range of the rewards replaces a small
    MAD.

    Args:
        least_mad: smallest MAD that scales a group, as a share of the group's range; 0 for the released formula.

    Source: "Median-Centered Group Relative Policy Optimization for Small-Rollout RL" (``grpo_trainer_gsm.py``). The
    release leaves out whichever of several median rollouts ``torch.median`` returns.

    Example:
        >>> rewards = [[0.0], [0.2], [0.3], [1.0], [0.9]]
        >>> credited = mc_grpo(TurnTable.from_lists(rewards=rewards, group_of_trajectory=[0] * 5))
        >>> np.round(credited.advantage, 6).tolist(), credited.loss_weight.tolist()
        ([-1.245847, -0.415282, 0.0, 2.906977, 2.491694], [1.0, 1.0, 0.0, 1.0, 1.0])
    """
    score, group, of_row = _scores(table)
    codes = dense(group)
    centred = score - _lower_medians(score, codes)[codes]
    spread = _lower_medians(np.abs(centred), codes)[codes]
    width = _ranges(score, codes)[codes]
    is_scale = (spread >= least_mad * width) & (spread > 0) if least_mad else np.ones(len(score), dtype=np.bool_)
    advantage = centred / (np.where(is_scale, spread, width) + MAD_EPS)
    # The loss averages over all rollouts of the group, so those with advantage 0 would shrink the gradient of the rest.
    is_moving = np.abs(advantage) > MOVING
    num_members = np.bincount(codes)[codes]
    num_moving = np.bincount(codes, weights=is_moving)[codes]
    advantage = np.where(is_moving, advantage * num_members / np.maximum(num_moving, 1), advantage)
    weight = np.ones(len(score))
    # The median rollout is the baseline and would train on an advantage of 0: one per group is left out.
    medians = np.flatnonzero(centred == 0)
    weight[medians[np.unique(codes[medians], return_index=True)[1]]] = 0.0
    return _spread(table, advantage[of_row], loss_weight=weight[of_row])


@estimator(
    "flow_grpo",
    paper="In-the-Flow Agentic System Optimization for Effective Planning and Tool Use",
    parity="lupantech/AgentFlow@b940064:agentflow/verl/daemon.py",
    options=FlowGrpoOptions,
    compares_groups=True,
    tells_agents=True,
    columns=lambda options: ("invocation",) if options.agents == "main" else (),
)
def flow_grpo(table: TurnTable, *, statistics_unit: str = "turn", agents: str = "main") -> TurnAdvantages:
    """``A = (S_i - mean) / (std + eps)``: each turn is a sample whose score is its trajectory's return.

    Args:
        statistics_unit: ``turn`` takes mean and deviation over all turn rows of the task, as the released code does,
            so long trajectories count more; ``trajectory`` is GRPO.
        agents: ``main`` scores and trains only the turns of the main agent (AgentFlow's planner). Turns of
            sub-agents, marked by the column ``invocation``, get ``loss_weight`` 0 and stay out of the statistics.
            ``all`` treats all turns alike.

    Source: "In-the-Flow Agentic System Optimization for Effective Planning and Tool Use"
    (``agentflow/verl/daemon.py``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0]], group_of_trajectory=[0, 0])
        >>> np.round(flow_grpo(table).advantage, 4).tolist()
        [0.5773, 0.5773, -1.1547]
    """
    if agents == "main" and table.invocation is not None and (table.invocation >= 0).any():
        return _of_main_agent(table, statistics_unit)
    if statistics_unit == "trajectory":
        return grpo(table)
    score, _, of_row = _scores(table)
    return _spread(table, zscore(score[of_row], table.group))


def _of_main_agent(table: TurnTable, statistics_unit: str) -> TurnAdvantages:
    assert table.invocation is not None
    is_main = table.invocation < 0
    own = flow_grpo(table.take(is_main), statistics_unit=statistics_unit, agents="all")
    advantage = np.zeros(len(table))
    advantage[is_main] = own.advantage
    return _spread(table, advantage, loss_weight=is_main.astype(np.float64))


@estimator(
    "supo",
    paper="Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management",
    status="reproduced",
    options=SupoOptions,
    compares_groups=True,
    columns=lambda options: ("is_truncated",) if options.mask_overlong else (),
)
def supo(table: TurnTable, *, mask_overlong: bool = True) -> TurnAdvantages:
    """GRPO over trajectories, with the same advantage for all segments (context windows) of a trajectory.

    A trajectory enters the statistics once, however many segments it has. With ``mask_overlong`` (column
    ``is_truncated``) a trajectory that hit a limit without an answer gets ``loss_weight`` 0 but stays in the
    statistics.

    Source: "Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management", equation 3.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 1], [0]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(is_truncated=[[False] * 3, [True]])
        >>> np.round(supo(table).advantage, 4).tolist(), supo(table).loss_weight.tolist()
        ([0.7071, 0.7071, 0.7071, -0.7071], [1.0, 1.0, 1.0, 0.0])
    """
    if not mask_overlong:
        return grpo(table)
    is_truncated = table.column("is_truncated", by="supo with mask_overlong")
    return _spread(table, grpo(table).advantage, loss_weight=np.where(is_truncated, 0.0, 1.0))


def _scores(table: TurnTable) -> tuple[Floats, Ints, Ints]:
    """Return and group of each trajectory ``[I]``, and the trajectory of each row ``[N]``."""
    view = trajectories(table)
    return per_trajectory(table, table.reward), view.group, view.of_row


def _spread(table: TurnTable, advantage: Floats, loss_weight: Floats | None = None) -> TurnAdvantages:
    return TurnAdvantages(advantage=advantage, return_to_go=returns_to_go(table, 1.0), loss_weight=loss_weight)


def _ranges(value: Floats, codes: Ints) -> Floats:
    """Return the largest value of each group minus its smallest, shape ``[G]``."""
    order = np.lexsort((value, codes))
    ends = np.cumsum(np.bincount(codes)) if len(codes) else np.zeros(0, dtype=np.int64)
    starts = np.append(0, ends[:-1]) if len(codes) else ends
    return np.asarray(value[order[ends - 1]] - value[order[starts]], dtype=np.float64)


def _lower_medians(value: Floats, codes: Ints) -> Floats:
    """Return the median of each group, the lower of the two middle values in groups of even size, shape ``[G]``."""
    order = np.lexsort((value, codes))
    count = np.bincount(codes) if len(codes) else np.zeros(0, dtype=np.int64)
    start = np.cumsum(count) - count
    return np.asarray(value[order[start + (count - 1) // 2]], dtype=np.float64)
