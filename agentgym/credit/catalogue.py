"""The estimators by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from agentgym.credit.anchors import similarity_anchors
from agentgym.credit.component import Component, Shared
from agentgym.credit.gae import (
    ArcherOptions,
    BiLevelGaeOptions,
    TokenGaeOptions,
    TurnGaeOptions,
    archer,
    bi_level_gae,
    token_gae,
    turn_gae,
)
from agentgym.credit.gigpo import GigpoOptions, gigpo
from agentgym.credit.group_relative import (
    FlowGrpoOptions,
    McGrpoOptions,
    SupoOptions,
    dr_grpo,
    flow_grpo,
    mc_grpo,
    opo,
    reinforce_pp_baseline,
    rloo,
    supo,
)
from agentgym.credit.grpo import grpo
from agentgym.credit.hgpo import HgpoOptions, hgpo
from agentgym.credit.igpo import IgpoOptions, igpo
from agentgym.credit.m_grpo import MGrpoOptions, m_grpo
from agentgym.credit.multi_reward import GdpoOptions, MtGrpoOptions, gdpo, mt_grpo
from agentgym.credit.rae import RaeOptions, rae
from agentgym.credit.reinforce_pp import ReinforcePpOptions, reinforce_pp
from agentgym.credit.spo import SpoOptions, spo
from agentgym.credit.state import CreditState
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.credit.ui_s1 import UiS1Options, ui_s1

EstimatorName = Literal[
    "archer",
    "bi_level_gae",
    "dr_grpo",
    "flow_grpo",
    "gdpo",
    "gigpo",
    "grpo",
    "hgpo",
    "igpo",
    "loop",
    "m_grpo",
    "mc_grpo",
    "mt_grpo",
    "opo",
    "rae",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rloo",
    "spo",
    "supo",
    "token_gae",
    "turn_gae",
    "ui_s1",
]

Estimated = tuple[TurnAdvantages, CreditState]


def _grpo(table: TurnTable, shared: Shared, options: None, state: CreditState) -> Estimated:
    return grpo(table, norm=shared.norm, gamma=shared.gamma, invalid_penalty=shared.invalid_penalty), state


def _gigpo(table: TurnTable, shared: Shared, options: GigpoOptions, state: CreditState) -> Estimated:
    if options.anchors == "similarity":
        table.require("observation", by="gigpo with anchors by similarity")
        assert table.observation is not None
        anchors = similarity_anchors(table.observation, table.group, options.similarity_threshold)
        table = replace(table, anchor=anchors)
    credited = gigpo(
        table,
        norm=shared.norm,
        gamma=shared.gamma,
        step_weight=shared.step_weight,
        statistics_unit=shared.statistics_unit,
        invalid_penalty=shared.invalid_penalty,
        revisits=options.revisits,
    )
    return credited, state


def _hgpo(table: TurnTable, shared: Shared, options: HgpoOptions, state: CreditState) -> Estimated:
    credited = hgpo(
        table, norm=shared.norm, gamma=shared.gamma, invalid_penalty=shared.invalid_penalty, options=options
    )
    return credited, state


def _igpo(table: TurnTable, shared: Shared, options: IgpoOptions, state: CreditState) -> Estimated:
    progress = min(1.0, state.step / options.curriculum_steps) if options.curriculum_steps else None
    return igpo(table, normalisation=options.normalisation, gamma=options.gamma, progress=progress), state


def _spo(table: TurnTable, shared: Shared, options: SpoOptions, state: CreditState) -> Estimated:
    credited, tracker = spo(table, state.spo, options)
    return credited, replace(state, spo=tracker)


def _rae(table: TurnTable, shared: Shared, options: RaeOptions, state: CreditState) -> Estimated:
    credited, baselines = rae(table, state.rae, options)
    return credited, replace(state, rae=baselines)


def _plain(function: Any, *keys: str) -> Any:
    """An estimator that keeps nothing, called with its table and the named keys of its options."""

    def run(table: TurnTable, shared: Shared, options: Any, state: CreditState) -> Estimated:
        return function(table, **{key: getattr(options, key) for key in keys}), state

    return run


def _entry(name: str, source: str, run: Any, test: str = "", **facts: Any) -> Component:
    golden = test or f"test_estimators.py::test_{name}"
    return Component(name=name, family="estimator", source=source, run=run, golden_test=golden, **facts)


def _of(*columns: str) -> Any:
    return lambda options: columns


DEEPSEEKMATH = "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models"
RAGEN = "RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning"
REINFORCE_PP = "REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models"

_ALL = (
    _entry("grpo", DEEPSEEKMATH, _grpo, "test_golden.py::test_grpo", compares_groups=True),
    _entry(
        "dr_grpo",
        "Understanding R1-Zero-Like Training: A Critical Perspective",
        _plain(dr_grpo),
        compares_groups=True,
    ),
    _entry(
        "rloo",
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
        _plain(rloo),
        compares_groups=True,
    ),
    _entry(
        "loop",
        "Reinforcement Learning for Long-Horizon Interactive LLM Agents",
        _plain(rloo),
        "test_estimators.py::test_rloo",
        compares_groups=True,
        is_experimental=True,
    ),
    _entry(
        "opo",
        "On-Policy RL with Optimal Reward Baseline",
        _plain(opo),
        compares_groups=True,
        columns=_of("num_tokens"),
    ),
    _entry(
        "reinforce_pp",
        REINFORCE_PP,
        _plain(reinforce_pp, "gamma"),
        options=ReinforcePpOptions,
        columns=_of("num_tokens"),
        granularity="token",
    ),
    _entry(
        "reinforce_pp_baseline",
        REINFORCE_PP,
        _plain(reinforce_pp_baseline),
        compares_groups=True,
        columns=_of("num_tokens"),
    ),
    _entry(
        "mc_grpo",
        "Median-Centered Group Relative Policy Optimization for Small-Rollout RL",
        _plain(mc_grpo, "unscaled_if_flat"),
        options=McGrpoOptions,
        compares_groups=True,
    ),
    _entry(
        "gdpo",
        "Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
        _plain(gdpo, "weights", "batch_norm"),
        options=GdpoOptions,
        compares_groups=True,
        keeps_parts=True,
        columns=lambda options: ("part_values", *(("num_tokens",) if options.batch_norm == "token" else ())),
    ),
    _entry(
        "spo",
        "Single-stream Policy Optimization",
        _spo,
        options=SpoOptions,
        columns=lambda options: ("group_keys", *(("num_tokens",) if options.whitening == "token" else ())),
    ),
    _entry(
        "gigpo",
        "Group-in-Group Policy Optimization for LLM Agent Training",
        _gigpo,
        "test_golden.py::test_gigpo_mean_std_norm",
        options=GigpoOptions,
        compares_groups=True,
        granularity="turn",
        columns=lambda options: ("observation",) if options.anchors == "similarity" else (),
    ),
    _entry(
        "hgpo",
        "Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks",
        _hgpo,
        options=HgpoOptions,
        compares_groups=True,
        granularity="turn",
    ),
    _entry(
        "igpo",
        "Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
        _igpo,
        options=IgpoOptions,
        compares_groups=True,
        keeps_parts=True,
        granularity="turn",
    ),
    _entry(
        "mt_grpo",
        "Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment",
        _plain(mt_grpo, "turn_weight", "turn_credit"),
        options=MtGrpoOptions,
        compares_groups=True,
        keeps_parts=True,
        granularity="turn",
        columns=_of("part_values"),
    ),
    _entry(
        "supo",
        "Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management",
        _plain(supo, "mask_overlong"),
        options=SupoOptions,
        compares_groups=True,
        columns=lambda options: ("is_truncated",) if options.mask_overlong else (),
    ),
    _entry(
        "rae",
        "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn RL",
        _rae,
        options=RaeOptions,
        granularity="turn",
        columns=lambda options: ("role", *(("group_keys",) if options.baseline_of == "task_role" else ())),
    ),
    _entry(
        "flow_grpo",
        "In-the-Flow Agentic System Optimization for Effective Planning and Tool Use",
        _plain(flow_grpo, "statistics_unit"),
        options=FlowGrpoOptions,
        compares_groups=True,
    ),
    _entry(
        "m_grpo",
        "Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO",
        lambda table, shared, options, state: (m_grpo(table, options), state),
        options=MGrpoOptions,
        compares_groups=True,
        granularity="turn",
        is_experimental=True,
        columns=_of("role", "invocation"),
    ),
    _entry(
        "ui_s1",
        "UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning",
        lambda table, shared, options, state: (ui_s1(table, options, step_weight=shared.step_weight), state),
        options=UiS1Options,
        compares_groups=True,
        granularity="turn",
        columns=_of("is_patched"),
    ),
    _entry(
        "token_gae",
        "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
        _plain(token_gae, "gamma", "lam", "whitened"),
        options=TokenGaeOptions,
        granularity="token",
        columns=_of("num_tokens", "token_value"),
    ),
    _entry(
        "turn_gae",
        "Turn-PPO: Turn-Level Advantage Estimation with PPO for Improved Multi-Turn RL in Agentic LLMs",
        _plain(turn_gae, "gamma", "lam", "whitened", "whitening_unit"),
        options=TurnGaeOptions,
        granularity="turn",
        is_experimental=True,
        columns=lambda options: (
            "value",
            *(("num_tokens",) if options.whitened and options.whitening_unit == "token" else ()),
        ),
    ),
    _entry(
        "bi_level_gae",
        RAGEN,
        _plain(bi_level_gae, "gamma", "lam", "gamma_high", "whitened"),
        options=BiLevelGaeOptions,
        granularity="token",
        columns=_of("num_tokens", "token_value"),
    ),
    _entry(
        "archer",
        "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL",
        _plain(archer, "gamma"),
        options=ArcherOptions,
        granularity="turn",
        is_experimental=True,
        columns=_of("q_value", "value"),
    ),
)

ESTIMATORS: dict[str, Component] = {entry.name: entry for entry in _ALL}
