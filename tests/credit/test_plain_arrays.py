"""Credit as a library: what users pass from Python is taken as it is meant, or refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from testkit.credit_tables import bandits

from agentgym.credit.component import ESTIMATORS
from agentgym.credit.compose import CreditConfig, assign_credit, credit_turns
from agentgym.credit.estimators.gigpo import GigpoOptions, gigpo
from agentgym.credit.estimators.hgpo import hgpo
from agentgym.credit.parts import outcomes
from agentgym.credit.shapers.gating import GraOptions
from agentgym.credit.shapers.information_gain import InformationGainOptions
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError
from agentgym.types import Task, TrajectoryGroup

REWARDS = [[0, 0, 1], [0, 0], [1]]
STATES = [["a", "b", "c"], ["a", "b"], ["a"]]
GROUP = TrajectoryGroup(ordinal=0, task=Task(id="t", split="train", seed=0), trajectories=())
table_of = cast(Callable[..., TurnTable], TurnTable.from_lists)
from_rows = TurnTable.from_rows
config = cast(Callable[..., CreditConfig], CreditConfig)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: config(norm="std"), "norm must be one of mean_std_norm, mean_norm; got 'std'"),
        (lambda: config(statistics_unit="rows"), "statistics_unit must be one of turn, trajectory; got 'rows'"),
        (lambda: GigpoOptions(anchors=cast(Any, "same")), "gigpo: anchors must be one of exact, similarity; got"),
        (lambda: config(gamma="0.9"), "gamma must be a number between 0 and 1, got '0.9'"),
        (lambda: config(gamma=np.float32(1.5)), "gamma must be between 0 and 1, got 1.5"),
        (lambda: config(shapers=("g_ra",)), "shapers holds 'g_ra', expected the options of a component, as in (SpaO"),
        (
            lambda: config(shapers=GraOptions()),
            "shapers must be a list, got GraOptions(",
        ),
        (lambda: GraOptions(thresholds=cast(Any, 0.5)), "g_ra: thresholds must be a list, got 0.5"),
        (lambda: GraOptions(ungated=cast(Any, "win")), "g_ra: ungated must be a list, got 'win'"),
        (lambda: GraOptions(priorities=cast(Any, 1)), "g_ra: priorities must be a mapping, got 1"),
        (lambda: config(step_weight=-1), "step_weight must be at least 0, got -1"),
        (lambda: credit_turns(bandits(1, 0), cast(Any, "gigpo")), "config is 'gigpo', expected CreditConfig, as in"),
        (lambda: assign_credit([], cast(Any, {"estimator": "gigpo"})), "config is {'estimator': 'gigpo'}, expected C"),
        (lambda: assign_credit(cast(Any, GROUP), config()), "groups is one TrajectoryGroup, expected a list"),
        (lambda: gigpo(bandits(1, 0), statistics_unit="rows"), "unknown statistics_unit 'rows'"),
        (lambda: hgpo(bandits(1, 0), norm="std"), "unknown norm 'std'"),
    ],
)
def test_settings_from_python_are_checked_as_those_of_the_command_line(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make()


def gigpo_of(**lists: Any) -> list[float]:
    advantage = credit_turns(table_of(**lists), config(norm="mean_norm")).advantage
    return [round(float(one), 6) for one in advantage]


@pytest.mark.parametrize("ids", [["x", "y", "x"], [0.5, 0.7, 0.5], [("task", 1), ("task", 2), ("task", 1)], [5, 2, 5]])
def test_groups_may_have_any_ids(ids: list[object]) -> None:
    expected = gigpo_of(rewards=REWARDS, states=STATES, group_of_trajectory=[0, 1, 0])
    assert gigpo_of(rewards=REWARDS, states=STATES, group_of_trajectory=ids) == expected


@pytest.mark.parametrize(
    "state",
    [torch.tensor, np.array, lambda n: torch.tensor([n, 1]), lambda n: [n], lambda n: {"at": n}, lambda n: ([n], 1)],
    ids=["tensors", "arrays", "vectors", "lists", "dicts", "tuples of lists"],
)
def test_states_are_compared_by_value(state: Callable[[int], object]) -> None:
    codes = [[0, 1, 2], [0, 1], [0]]
    made = [[state(code) for code in row] for row in codes]
    expected = gigpo_of(rewards=REWARDS, states=codes, group_of_trajectory=[0, 0, 0])
    assert gigpo_of(rewards=REWARDS, states=made, group_of_trajectory=[0, 0, 0]) == expected


def test_rows_may_be_tensors() -> None:
    square = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    expected = gigpo_of(rewards=square.tolist(), states=[["a", "b"], ["a", "b"]], group_of_trajectory=[0, 0])
    assert gigpo_of(rewards=square, states=[["a", "b"], ["a", "b"]], group_of_trajectory=torch.zeros(2)) == expected
    table = table_of(rewards=[square[0], square[1]], group_of_trajectory=[0, 0])
    table = table.with_columns(num_tokens=[np.array([1, 2]), torch.tensor([3, 4])])
    assert table.num_tokens is not None and table.num_tokens.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "of",
    [
        lambda values: torch.tensor(values, dtype=torch.bfloat16),
        lambda values: torch.tensor(values, dtype=torch.float32, requires_grad=True),
        lambda values: np.array(values, dtype=np.float16),
        lambda values: np.array(values, dtype=object),  # as in verl's non_tensor_batch
    ],
)
def test_columns_may_have_any_type_of_number(of: Callable[[list[Any]], Any]) -> None:
    rows: dict[str, list[Any]] = {"group": [0, 0, 0], "trajectory": [1, 0, 1], "turn": [1, 0, 0], "reward": [1, 0.5, 0]}
    more: dict[str, list[Any]] = {"is_valid": [True, False, True], "num_tokens": [2, 1, 1], "entropy": [0.25, 0.5, 1]}
    tokens: dict[str, list[Any]] = {"token_value": [1, 2, 3, 4]}
    want = from_rows(**rows, **more, **tokens)
    got = from_rows(**{name: of(column) for name, column in (rows | more | tokens).items()})
    for name in (*rows, *more, *tokens):
        assert getattr(got, name).tolist() == getattr(want, name).tolist()
        assert getattr(got, name).dtype == getattr(want, name).dtype
    in_order = table_of(rewards=[[0], [0, 0]], group_of_trajectory=[0, 0])
    parts = in_order.with_parts(solved=("outcome", of([0, 0.5, 1]))).with_columns(entropy=[of([0.5]), of([1, 0.25])])
    assert (parts.reward.tolist(), parts.entropy.tolist()) == ([0, 0.5, 1], [0.5, 1, 0.25])  # type: ignore[union-attr]


def test_rows_in_any_order_keep_their_ids_and_tokens() -> None:
    table = from_rows(
        group=["g", "h", "g"],
        trajectory=["t9", "t7", "t8"],
        turn=[0, 0, 0],
        reward=[1, 5, 0],
        anchor=["s", "s", "s"],
        final_anchor=["s", -1, "end"],
        parent=["t8", None, -1],
        num_tokens=[2, 1, 3],
        token_value=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        observation=["nine", "seven", "eight"],
    )
    assert table.reward.tolist() == [5, 0, 1]
    assert table.group.tolist() == [1, 0, 0]
    assert table.anchor.tolist()[1:] == [table.anchor[1]] * 2 and table.anchor[0] != table.anchor[1]
    assert table.final_anchor is not None and table.final_anchor[0] == -1
    assert table.final_anchor[2] == table.anchor[2] and table.final_anchor[1] not in table.anchor
    assert table.parent is not None and table.parent.tolist() == [-1, -1, 1]
    assert table.token_value is not None and table.token_value.tolist() == [0.3, 0.4, 0.5, 0.6, 0.1, 0.2]
    assert table.observation == ("seven", "eight", "nine")


def shuffled_rows(seed: int) -> tuple[dict[str, Any], list[int]]:
    """Return rows of two groups in some order, with a column per token, and the numbers of the rows."""
    turns = [("t10", "g", 3), ("t2", "g", 2), ("t1", "h", 2), ("t9", "h", 1)]
    rows = [(t, g, n, float(t in ("t10", "t9") and n == count - 1)) for t, g, count in turns for n in range(count)]
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    picked = [rows[at] for at in order]
    counts = [1 + at % 3 for at in order]
    columns: dict[str, Any] = {
        "trajectory": [row[0] for row in picked],
        "group": [row[1] for row in picked],
        "turn": [row[2] for row in picked],
        "reward": [row[3] for row in picked],
        "anchor": [row[2] for row in picked],
        "num_tokens": counts,
        "token_value": [at / 10 + n / 100 for at, count in zip(order, counts, strict=True) for n in range(count)],
        "token_entropy": [at / 10 for at, count in zip(order, counts, strict=True) for _ in range(count)],
        "entropy": [at / 10 for at in order],
        "value": [at / 10 for at in order],
        "q_value": [at / 5 for at in order],
        "role": [0] * len(order),
        "info_gain": [0.1] * len(order),
        "invocation": [-1] * len(order),
        "is_truncated": [False] * len(order),
        **dict.fromkeys(("is_patched", "is_faulty"), [False] * len(order)),
        "num_answers": [1] * len(order),
        "answer": order,
        "segment": [row[2] for row in picked],
        "part_names": ("won",),
        "part_roles": ("outcome",),
        "part_values": [[row[3]] for row in picked],
        "group_keys": {"h": "task h", "g": "task g"},
    }
    return columns, order


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_the_result_is_in_the_order_of_the_rows_given(name: str) -> None:
    shapers = (InformationGainOptions(),) if name == "igpo" else ()
    settings = {"estimator": name, "shapers": shapers}
    found = []
    for seed in (0, 1, 2):
        columns, order = shuffled_rows(seed)
        if shapers:
            columns["answer_logprobs"] = {one: [[-1.0], [-0.5]] for one in ("t10", "t2", "t1", "t9")}
        result = credit_turns(from_rows(**columns), config(**settings))
        found.append({row: result.advantage[at] for at, row in enumerate(order)})
        if result.token_advantage is not None:
            ends = np.cumsum(columns["num_tokens"])
            means = [piece.mean() for piece in np.split(result.token_advantage, ends[:-1])]
            np.testing.assert_allclose(means, result.advantage)
        assert result.num_tokens is None or result.num_tokens.tolist() == columns["num_tokens"]
    for other in found[1:]:
        np.testing.assert_allclose([other[row] for row in sorted(other)], [found[0][row] for row in sorted(other)])


def test_zipping_rows_with_their_result_gives_a_success_its_own_credit() -> None:
    rows = [("t10", 1, 1), ("t2", 1, 0), ("t10", 0, 0), ("t2", 0, 0)]
    names = [name for name, _, _ in rows]
    table = from_rows(group=["g"] * 4, trajectory=names, turn=[n for _, n, _ in rows], reward=[r for *_, r in rows])
    advantage = credit_turns(table, config(estimator="grpo")).advantage
    assert [one > 0 for one in advantage] == [name == "t10" for name in names]
    assert table.in_given_order(table.reward).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    "add", [lambda table: table.with_columns(entropy=[1, 2]), lambda table: table.with_parts(won=("outcome", [1, 2]))]
)
def test_columns_of_sorted_rows_are_refused_later(add: Callable[[TurnTable], TurnTable]) -> None:
    add(from_rows(**ROW))
    with pytest.raises(ConfigError, match=r"the rows of this table were sorted, so the order of (entropy|won) is"):
        add(from_rows(**{**ROW, "trajectory": [1, 0]}))


def test_roles_of_parts_are_read_from_text() -> None:
    parts: dict[str, Any] = {"part_names": ["won"], "part_values": [[0.0], [1.0]]}
    table = from_rows(**ROW, **parts, part_roles=["outcome"])
    assert outcomes(table).tolist() == [0, 1]
    with pytest.raises(ConfigError, match="unknown role 'prize'"):
        from_rows(**ROW, **parts, part_roles=["prize"])


def test_columns_per_trajectory_are_read_by_id() -> None:
    of = {"t10": [[-1.0]], "t2": [[-2.0]]}
    rows = {**ROW, "trajectory": ["t10", "t2"]}
    table = from_rows(**rows, answer_logprobs=of)
    assert table.answer_logprobs is not None and [one.tolist() for one in table.answer_logprobs] == [[[-1.0]], [[-2.0]]]
    with pytest.raises(ConfigError, match="ids of column 'trajectory' are text, so give a dict with an entry for each"):
        from_rows(**rows, answer_logprobs=list(of.values()))
    with pytest.raises(ConfigError, match="column 'group_keys' has no entry for group 0"):
        from_rows(**rows, group_keys={1: "x"})


ROW = {"group": [0, 0], "trajectory": [0, 1], "turn": [0, 0], "reward": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: table_of(rewards=REWARDS, group_of_trajectory=0), "group_of_trajectory is 0, expected one group per"),
        (
            lambda: table_of(rewards=[[None]], group_of_trajectory=[0]),
            "rewards[0][0] is None, expected a finite number",
        ),
        (lambda: table_of(rewards=[[0]], states=[[object()]], group_of_trajectory=[0]), "equals no other object"),
        (lambda: bandits(1, 0, is_void=["no", "yes"]), "column 'is_void' holds 'no', expected True or False"),
        (lambda: bandits(1, 0, num_tokens=[1.5, 2]), "column 'num_tokens' holds 1.5, expected whole numbers"),
        (lambda: bandits(1, 0, num_tokens=[4, -100]), "column 'num_tokens' holds -100, expected counts from 0 on"),
        (lambda: bandits(1, 0, value=["a", 2]), "column 'value': expected numbers"),
        (lambda: bandits(1, 0, answer_logprobs=[[-1, -2], [-1]]), "entry 0 has the shape (2,), expected [C, R]"),
        (
            lambda: bandits(1, 0, answer_logprobs=[[[-1]]]),
            "column 'answer_logprobs' has 1 entries, the table 2",
        ),
        (lambda: from_rows(reward=[1]), "the columns group, trajectory, turn are missing"),
        (lambda: from_rows(**ROW, foo=[1, 2]), "unknown column 'foo'"),
        (lambda: from_rows(**ROW, state=["a", "b"]), "states are the column anchor"),
        (lambda: credit_turns(cast(Any, ROW), CreditConfig()), "expected TurnTable, as TurnTable.from_lists returns"),
        (lambda: CreditConfig(estimator=cast(Any, 3)), "estimator is 3, expected str, the name of one"),
        (lambda: from_rows(**{**ROW, "group": [0]}), "column 'group' has 1 rows, the column 'reward' 2"),
        (lambda: from_rows(**{**ROW, "turn": [-1, 0]}), "column 'turn' holds -1, expected positions counted from 0"),
        (lambda: from_rows(**{**ROW, "reward": 3}), "column 'reward' is 3, expected a list, an array or a tensor"),
        (lambda: from_rows(**{**ROW, "trajectory": ["a", 1]}), "expected ids that are all numbers or all text"),
        (lambda: bandits(1, 0).with_columns(entropy=np.ones((2, 1))), "has the shape (2, 1), expected one entry per"),
        (lambda: credit_turns(bandits(1), CreditConfig(), cast(Any, {})), "state is {}, expected CreditState"),
        (lambda: assign_credit(cast(Any, [1]), CreditConfig()), "groups[0] is 1, expected TrajectoryGroup"),
        (
            lambda: from_rows(**{**ROW, "trajectory": [0, 0]}),
            "row 1 is turn 0 of trajectory 0 in group 0, after",
        ),
        (lambda: from_rows(**{**ROW, "trajectory": [0, 0], "turn": [0, 1], "group": [0, 1]}), "a trajectory is in one"),
        (lambda: bandits(1, 0).with_parts(a=("result", [1, 0])), "unknown role 'result'"),
        (lambda: bandits(1, 0).with_parts(a=("outcome", [1])), "part 'a' has 1 values, expected 2, one per turn"),
        (lambda: bandits(1, 0).with_parts(a=cast(Any, [1, 0])), "part 'a' is [1, 0], expected a role and"),
        (
            lambda: table_of(rewards=REWARDS, group_of_trajectory=[0] * 3).with_parts(
                a=("outcome", [[0, 0], [0, 0, 0], [1]])
            ),
            "part 'a': list 0 has 2 entries, expected 3, one per turn",
        ),
    ],
)
def test_wrong_columns_are_refused_in_words(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make()


def test_columns_that_are_none_are_as_if_they_were_not_given() -> None:
    given, plain = from_rows(**ROW, anchor=None, is_valid=None, entropy=None), from_rows(**ROW)
    assert given.anchor.tolist() == plain.anchor.tolist() and given.is_valid.all() and given.entropy is None
