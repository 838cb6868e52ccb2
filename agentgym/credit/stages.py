"""The shapers, modulators and selections by name, and the table of all components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgym.credit.catalogue import ESTIMATORS
from agentgym.credit.component import Component
from agentgym.credit.modulators.branches import R3lOptions, SharedPrefixOptions, r3l_pivot, shared_prefix
from agentgym.credit.modulators.entropy import AepoOptions, EmpgOptions, aepo_advantage, empg
from agentgym.credit.modulators.modulated import Modulated
from agentgym.credit.modulators.salt import SaltOptions, salt
from agentgym.credit.selections.downsampling import D3sOptions, PodsOptions, RocOptions, d3s, pods, roc
from agentgym.credit.selections.filters import (
    DynamicSamplingOptions,
    OverlongMaskOptions,
    VoidTurnsOptions,
    dynamic_sampling,
    overlong_mask,
    void_turns,
)
from agentgym.credit.shapers.attempts import UfoOptions, ufo
from agentgym.credit.shapers.gating import GraOptions, g_ra
from agentgym.credit.shapers.information_gain import InformationGainOptions, information_gain
from agentgym.credit.shapers.penalties import InvalidCallOptions, OverlongOptions, invalid_call, overlong_penalty
from agentgym.credit.shapers.progress import SpaOptions, spa
from agentgym.credit.shapers.self_play import SpiralSplitOptions, spiral_split
from agentgym.credit.shapers.shaped import Shaped
from agentgym.credit.shapers.tool_use import OtcOptions, ToolBonusOptions, otc, tool_bonus
from agentgym.credit.state import CreditState
from agentgym.credit.table import Bools, Floats, TurnTable

ShapedAndState = tuple[Shaped, CreditState]
RowsAndTokens = tuple[Bools, Bools | None]


def _shaper(function: Any) -> Any:
    def run(table: TurnTable, options: Any, state: CreditState, merged: bool) -> ShapedAndState:
        return function(table, options), state

    return run


def _gain(table: TurnTable, options: Any, state: CreditState, merged: bool) -> ShapedAndState:
    return information_gain(table, options, merged=merged), state


def _otc(table: TurnTable, options: Any, state: CreditState, merged: bool) -> ShapedAndState:
    shaped, fewest = otc(table, state.otc, options)
    return shaped, replace(state, otc=fewest)


def _bonus(table: TurnTable, options: Any, state: CreditState, merged: bool) -> ShapedAndState:
    return tool_bonus(table, state.step, options), state


def _split(table: TurnTable, options: Any, state: CreditState, merged: bool) -> ShapedAndState:
    return spiral_split(table), state


def _modulator(function: Any) -> Any:
    def run(table: TurnTable, advantage: Floats, token_advantage: Floats | None, options: Any) -> Modulated:
        result: Modulated = function(table, advantage, options)
        return result

    return run


def _filter(function: Any, *, has_keys: bool = True) -> Any:
    def run(table: TurnTable, options: Any, advantage: Floats, step: int) -> RowsAndTokens:
        return (function(table, options) if has_keys else function(table)), None

    return run


def _entry(family: Any, options: Any, source: str, run: Any, columns: Any, **facts: Any) -> Component:
    name = options.__dataclass_fields__["kind"].default
    golden = f"test_{family}s.py::test_{name}"
    of = columns if callable(columns) else lambda _: columns
    return Component(
        name=name, family=family, source=source, run=run, options=options, columns=of, golden_test=golden, **facts
    )


def _otc_columns(options: OtcOptions) -> tuple[str, ...]:
    return ("num_calls", "part_values", *(("group_keys",) if options.variant == "grpo" else ()))


def _metric_columns(options: DynamicSamplingOptions) -> tuple[str, ...]:
    return () if options.metric == "return" else ("part_values",)


DAPO = "DAPO: An Open-Source LLM Reinforcement Learning System at Scale"
R3L = "Reflect-then-Retry Reinforcement Learning"
SPIRAL = "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn RL"

SHAPERS: dict[str, Component] = {
    entry.name: entry
    for entry in (
        _entry(
            "shaper",
            GraOptions,
            "Stabilizing Long-term Multi-turn Reinforcement Learning with Gated Rewards",
            _shaper(g_ra),
            ("part_values",),
            is_experimental=True,
        ),
        _entry(
            "shaper",
            InformationGainOptions,
            "Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn LLM Agents",
            _gain,
            ("answer_logprobs",),
        ),
        _entry(
            "shaper",
            InvalidCallOptions,
            "Group-in-Group Policy Optimization for LLM Agent Training (code)",
            _shaper(invalid_call),
            (),
        ),
        _entry("shaper", OverlongOptions, DAPO, _shaper(overlong_penalty), ("num_tokens",)),
        _entry(
            "shaper",
            OtcOptions,
            "OTC: Optimal Tool Calls via Reinforcement Learning",
            _otc,
            _otc_columns,
            is_experimental=True,
        ),
        _entry(
            "shaper",
            UfoOptions,
            "A Simple 'Try Again' Can Elicit Multi-Turn LLM Reasoning",
            _shaper(ufo),
            ("part_values", "answer"),
            is_experimental=True,
        ),
        _entry(
            "shaper",
            ToolBonusOptions,
            "Learn the Ropes, Then Trust the Wins: Self-imitation with Progressive Exploration (SPEAR)",
            _bonus,
            ("num_calls",),
        ),
        _entry(
            "shaper",
            SpaOptions,
            "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution",
            _shaper(spa),
            ("progress",),
        ),
        _entry("shaper", SpiralSplitOptions, SPIRAL, _split, ("role", "player_outcome"), is_experimental=True),
    )
}

MODULATORS: dict[str, Component] = {
    entry.name: entry
    for entry in (
        _entry(
            "modulator",
            SaltOptions,
            "SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph",
            _modulator(salt),
            ("action",),
            granularity="turn",
            is_experimental=True,
        ),
        _entry(
            "modulator",
            EmpgOptions,
            "Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents",
            _modulator(empg),
            ("entropy",),
            granularity="turn",
        ),
        _entry(
            "modulator",
            AepoOptions,
            "Agentic Entropy-Balanced Policy Optimization",
            aepo_advantage,
            ("num_tokens", "token_entropy"),
            granularity="token",
            is_experimental=True,
        ),
        _entry(
            "modulator",
            SharedPrefixOptions,
            "Agentic Reinforced Policy Optimization",
            _modulator(shared_prefix),
            ("parent", "branch_turn"),
            granularity="turn",
        ),
        _entry(
            "modulator",
            R3lOptions,
            R3L,
            _modulator(r3l_pivot),
            ("parent", "branch_turn"),
            is_experimental=True,
        ),
    )
}

SELECTIONS: dict[str, Component] = {
    entry.name: entry
    for entry in (
        _entry("selection", DynamicSamplingOptions, DAPO, _filter(dynamic_sampling), _metric_columns),
        _entry(
            "selection",
            VoidTurnsOptions,
            "SimpleTIR: End-to-End Reinforcement Learning for Multi-Turn Tool-Integrated Reasoning",
            _filter(void_turns, has_keys=False),
            ("is_void",),
        ),
        _entry("selection", OverlongMaskOptions, DAPO, _filter(overlong_mask, has_keys=False), ("is_truncated",)),
        _entry(
            "selection",
            RocOptions,
            "rStar2-Agent: Agentic Reasoning Technical Report",
            _filter(roc),
            ("num_calls", "num_errors", "num_answers"),
        ),
        _entry(
            "selection",
            PodsOptions,
            "Not All Rollouts are Useful: Down-Sampling Rollouts in LLM RL",
            _filter(pods),
            (),
            is_experimental=True,
        ),
        _entry(
            "selection",
            D3sOptions,
            "Learning More with Less (D3S)",
            lambda table, options, advantage, step: d3s(table, advantage, step, options),
            ("num_tokens", "token_entropy"),
            is_experimental=True,
            is_after=True,
        ),
    )
}

FAMILIES: Mapping[str, Mapping[str, Component]] = {
    "shaper": SHAPERS,
    "estimator": ESTIMATORS,
    "modulator": MODULATORS,
    "selection": SELECTIONS,
}


def credit_table() -> tuple[tuple[str, str, str, str, str], ...]:
    """Rows (name, class, source, status, golden test) of every component, in the order of the pipeline.

    Example:
        >>> [row[:2] for row in credit_table() if row[3] == "experimental"][0]
        ('g_ra', 'shaper')
    """
    return tuple(
        (entry.name, entry.family, entry.source, entry.status, f"tests/credit/{entry.golden_test}")
        for family in FAMILIES.values()
        for entry in family.values()
    )
