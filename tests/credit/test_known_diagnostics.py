"""Diagnostics of credit, the metrics `credit/NAME`, computed by hand: those of every component."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from testkit.zero_one_tables import KINDS, configs, table_of

from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.selections.downsampling import D3sOptions
from agentgym.credit.selections.filters import DynamicSamplingOptions, OverlongMaskOptions, VoidTurnsOptions
from agentgym.credit.shapers.attempts import UfoOptions
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.shapers.information_gain import InformationGainOptions
from agentgym.credit.shapers.majority import MajorityOptions
from agentgym.credit.shapers.penalties import InvalidCallOptions, OverlongOptions
from agentgym.credit.shapers.progress import SpaOptions
from agentgym.credit.shapers.score import ScoreOptions
from agentgym.credit.shapers.tool_use import OtcOptions, ToolBonusOptions
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError

STEPS = ("process", [[0.1, 0.1], [0.1], [0.1], [0.1, 0.1]])


def table(steps: tuple[str, list[list[float]]] | None = None) -> TurnTable:
    """Return two groups of two: a success of two turns and a failure; two failures, the second of two turns."""
    rewards = [[0.0, 1.0], [0.0], [0.0], [0.0, 0.0]]
    made = TurnTable.from_lists(
        rewards=rewards,
        states=[["s", "t"], ["s"], ["u"], ["v", "w"]],
        is_valid=[[True, True], [True], [False], [True, True]],
        group_of_trajectory=[0, 0, 1, 1],
    )
    parts: dict[str, Any] = {"outcome": ("outcome", rewards)}
    made = made.with_parts(**parts | ({} if steps is None else {"steps": steps}))
    return made.with_columns(
        is_void=[False, False, True, False, False, False],
        is_truncated=[False, False, True, True, False, False],
        num_tokens=[5, 5, 3, 8, 1, 1],
        num_calls=[1, 2, 0, 1, 1, 3],
        group_keys=["one", "two"],
        answer=[-1, 0, 0, -1, 0, 0],
        progress=[0.2, 0.3, 0.1, 0.0, 0.0, 0.0],
        entropy=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        token_entropy=np.arange(23) / 23,
        # the second has a row too few, the third a reference of one token, the fourth no number before its last turn
        answer_logprobs=[[[-2.0], [-1.0]], [[-1.0]] * 3, [[-1.0]], [[-np.inf], [-1.0]]],
        answer_lengths=[[3], [3], [1], [3]],
    )


PLAIN = {
    "zero_advantage_share": 3 / 6,
    "left_out_share": 0.0,
    "flat_group_share": 1 / 2,
    "phantom_share": 0.0,
}
SHAPED = {**PLAIN, "zero_advantage_share": 0.0, "phantom_share": 3 / 6}
"""A shaper sets the failures of the second group apart, in which nobody has won."""
CASES: list[tuple[str, dict[str, Any], dict[str, float]]] = [
    ("nothing", {}, PLAIN),
    ("invalid_call", {"shapers": (InvalidCallOptions(),)}, {"changed/invalid_call": 1 / 6, "invalid_call_rate": 1 / 6}),
    (
        "overlong_penalty",  # of 10, 3, 8 and 2 tokens; the penalty begins above 5
        {"shapers": (OverlongOptions(max_tokens=10, buffer_tokens=5),)},
        {"changed/overlong_penalty": 2 / 6, "overlong_rate": 2 / 4},
    ),
    (
        "majority",  # the first group agrees, in the second one answers; the grader agrees with the first and the third
        {"shapers": (MajorityOptions(),)},
        {
            "phantom_share": 3 / 6,
            "changed/majority": 2 / 6,
            "majority_share": (1 + 1 / 2) / 2,
            "majority_agreement": 2 / 4,
        },
    ),
    (
        "ufo",  # the success keeps 1 - 0.1, failures pay for malformed and repeated answers
        {"shapers": (UfoOptions(),)},
        {"changed/ufo": 3 / 6, "attempts_to_success_mean": 2.0},
    ),
    (
        "spa",  # the success: 0.2 and the rest of its return; the failure of one turn gets its return back
        {"shapers": (SpaOptions(),)},
        {"changed/spa": 2 / 6, "progress_loss": (0.25 + 0.01) / 4},
    ),
    (
        "otc",  # one success with three calls, which is its task's best
        {"shapers": (OtcOptions(),)},
        {"changed/otc": 0.0, "otc_factor_mean": 1.0, "calls_mean": (3 + 0 + 1 + 4) / 4},
    ),
    (
        "tool_bonus",  # turns that call: 2, 0, 1 and 2
        {"shapers": (ToolBonusOptions(),)},
        {"changed/tool_bonus": 3 / 6, "tool_bonus": 0.05 * (2 + 0 + 1 + 2) / 4},
    ),
]


@pytest.mark.parametrize(("name", "keys", "known"), CASES, ids=[name for name, _, _ in CASES])
def test_diagnostics(name: str, keys: dict[str, Any], known: dict[str, float]) -> None:
    found = credit_turns(table(), CreditConfig(estimator="grpo", **keys)).diagnostics
    sets_apart = name in ("invalid_call", "overlong_penalty", "ufo", "tool_bonus")
    assert found == pytest.approx((SHAPED if sets_apart else PLAIN) | known)


def test_gates() -> None:
    """One of four gates is open; three trajectories of four turns in all lose their steps, which made no group flat."""
    found = credit_turns(table(STEPS), CreditConfig(estimator="grpo", shapers=(GraOptions(),))).diagnostics
    known = {"changed/g_ra": 4 / 6, "gate_open_rate": 1 / 4, "outcome_mean": 1 / 4, "step_reward_mean": 0.6 / 4}
    assert found == pytest.approx(PLAIN | {"flat_group_share": 0.0} | known)


def test_attempts() -> None:
    """Wrong, then right; wrong; wrong; right, then wrong: one gains 1, another loses 1."""
    attempts = ("process", [[0.0, 0.0], [0.0], [0.0], [1.0, 0.0]])
    found = credit_turns(table(attempts), CreditConfig(estimator="grpo", shapers=(ScoreOptions(),))).diagnostics
    assert (found["correction_mean"], found["first_attempt_mean"]) == (0.0, 1 / 4)
    late = ("process", [[0.0, 0.0], [1.0], [0.0], [0.0, 0.0]])
    found = credit_turns(table(late), CreditConfig(estimator="grpo", shapers=(ScoreOptions(),))).diagnostics
    assert (found["correction_mean"], found["first_attempt_mean"]) == (1 / 4, 1 / 4)


def test_information_gain() -> None:
    """One trajectory of four has a gain, and each of the others another reason to have none."""
    options = InformationGainOptions(min_answer_tokens=2)
    found = credit_turns(table(), CreditConfig(estimator="igpo", shapers=(options,))).diagnostics
    named = {name: found[f"info_gain_{name}"] for name in ("mismatches", "too_short", "not_finite")}
    assert named == {"mismatches": 1, "too_short": 1, "not_finite": 1}
    assert found["changed/information_gain"] == 1 / 6


@pytest.mark.parametrize(
    ("options", "name", "share", "left_out", "dropped"),
    [
        (DynamicSamplingOptions(), "dynamic_sampling", 3 / 6, 3 / 6, 1 / 2),
        (VoidTurnsOptions(), "void_turns", 1 / 6, 1 / 6, 0.0),
        (OverlongMaskOptions(), "overlong_mask", 2 / 6, 2 / 6, 0.0),
    ],
)
def test_selections(options: Any, name: str, share: float, left_out: float, dropped: float) -> None:
    found = credit_turns(table(), CreditConfig(estimator="grpo", selections=(options,))).diagnostics
    known = {f"changed/{name}": share, "left_out_share": left_out, "dropped_group_share": dropped}
    assert {key: found[key] for key in known} == pytest.approx(known)


def test_a_selection_of_tokens_counts_tokens() -> None:
    result = credit_turns(table(), CreditConfig(estimator="grpo", selections=(D3sOptions(),)))
    assert result.token_keep is not None
    share = 1 - result.token_keep.sum() / 23
    assert 0 < share < 1 and result.diagnostics["changed/d3s"] == pytest.approx(share)


def test_states_that_meet() -> None:
    """Two of six turns were taken in a state that another turn of their group shares."""
    found = credit_turns(table(), CreditConfig(estimator="gigpo")).diagnostics
    assert found["shared_anchor_share"] == pytest.approx(2 / 6)


def test_every_diagnostic_has_an_answer_here() -> None:
    known = {*PLAIN, *(name for _, _, names in CASES for name in names)}
    known |= {"gate_open_rate", "outcome_mean", "step_reward_mean", "correction_mean", "first_attempt_mean"}
    known |= {"info_gain_mismatches", "info_gain_too_short", "info_gain_not_finite"}
    known |= {"dropped_group_share", "shared_anchor_share"}
    assert diagnostics_of_all_components() - known == set()


def diagnostics_of_all_components() -> set[str]:
    """Return the names of the diagnostics of every component of credit, without the family ``changed/KIND``."""
    found: set[str] = set()
    for _, keys in configs():
        try:
            config = CreditConfig(**keys)
        except ConfigError:  # two components that do not go together
            continue
        found |= set(credit_turns(table_of(KINDS["two members"]), config).diagnostics)
    return {name for name in found if not name.startswith("changed/")}
