"""Read lists, arrays and tensors of a user as the columns of a credit table."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym.canonical import canonical
from agentgym.errors import ConfigError, require_known
from agentgym.types import RewardRole

DTYPES: dict[str, type] = {
    **dict.fromkeys(("is_valid", "is_void", "is_truncated", "is_executed", "is_patched", "is_faulty"), np.bool_),
    **dict.fromkeys(("reward", "entropy", "value", "q_value", "info_gain", "progress"), np.float64),
    **dict.fromkeys(("player_outcome", "drift", "token_value", "token_entropy", "part_values"), np.float64),
    **dict.fromkeys(("group", "trajectory", "turn", "anchor", "action", "final_anchor", "answer"), np.int64),
    **dict.fromkeys(("num_calls", "num_errors", "num_answers", "num_tokens", "segment"), np.int64),
    **dict.fromkeys(("num_shared_tokens", "source_row"), np.int64),
    **dict.fromkeys(("role", "invocation", "moment", "parent", "branch_turn"), np.int64),
}
PER_TOKEN = ("token_value", "token_entropy")
PER_TRAJECTORY = ("answer_logprobs", "answer_lengths")
NO_ROWS = ("part_names", "part_roles", "group_keys", *PER_TOKEN, *PER_TRAJECTORY)
_EXPECTED = {np.bool_: "True or False", np.int64: "whole numbers", np.float64: "numbers"}


def is_list(value: object) -> bool:
    """Return True for a list, a tuple, or an array or tensor that has a length."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0


def plain(value: Any) -> Any:
    """Return an array, a tensor or one of their numbers as plain lists and numbers, anything else as it is.

    Example:
        >>> plain(np.array([1, 2])), plain("a")
        ([1, 2], 'a')
    """
    return value.tolist() if hasattr(value, "tolist") else value


def codes_of(keys: Sequence[Hashable], *, in_order: bool = False) -> NDArray[np.int64]:
    """Return integers that are equal exactly for equal keys, numbered by first appearance or by the keys' order.

    Example:
        >>> codes_of(["b", "a", "b"]).tolist(), codes_of(["b", "a", "b"], in_order=True).tolist()
        ([0, 1, 0], [1, 0, 1])
    """
    first = sorted(set(keys)) if in_order else ()  # type: ignore[type-var]
    codes: dict[Hashable, int] = {key: code for code, key in enumerate(first)}
    return np.fromiter((codes.setdefault(key, len(codes)) for key in keys), np.int64, len(keys))


def group_codes(groups: Sequence[Any]) -> NDArray[np.int64]:
    """Return group ids as integers: integers as they are, other ids numbered in the order in which they appear.

    Example:
        >>> group_codes([3, 1, 3]).tolist(), group_codes(["task-9", "task-2", "task-9"]).tolist()
        ([3, 1, 3], [0, 1, 0])
    """
    keys = [plain(group) for group in plain(groups)]
    if all(isinstance(key, Integral) for key in keys):
        return np.array(keys, dtype=np.int64)
    return codes_of([by_value(key, "the group id") for key in keys])


def coded(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of ids as integers: groups, trajectories, their parents, and states within their group."""
    ids = [by_value(key, "the trajectory id") for key in plain(columns["trajectory"])]
    try:
        trajectory = codes_of(ids, in_order=True)
    except TypeError as error:  # ids of several types have no order
        raise ConfigError(f"column 'trajectory': expected ids that are all numbers or all text; {error}") from None
    group = group_codes(columns["group"])
    made: dict[str, Any] = {"group": group, "trajectory": trajectory}
    if columns.get("parent") is not None:
        code = dict(zip(ids, trajectory.tolist(), strict=True))
        made["parent"] = [code.get(by_value(key, "the parent"), -1) for key in plain(columns["parent"])]
    named = [name for name in ("anchor", "final_anchor") if columns.get(name) is not None]
    states = [[by_value(key, "state") for key in plain(columns[name])] for name in named]
    codes = codes_of([(of, key) for keys in states for of, key in zip(group.tolist(), keys, strict=True)])
    made |= dict(zip(named, np.split(codes, len(named)), strict=True))
    if "final_anchor" in made:
        made["final_anchor"] = np.where([key == -1 for key in states[-1]], -1, made["final_anchor"])
    return made


def by_value(key: Any, name: str) -> Hashable:
    """Return a key that is hashable and equal to another exactly if the values are equal.

    Numbers, text and tuples of them stay. Arrays, tensors, lists, sets and mappings become their canonical text.

    Args:
        key: a state or an id.
        name: what it is, for the error.

    Raises:
        ConfigError: the key has no value to compare, so that two equal ones would differ.
    """
    value = plain(key)
    try:
        hash(value)
    except TypeError:
        try:
            return ("", canonical(value))
        except TypeError as error:
            raise ConfigError(f"{name} {key!r} cannot be compared: {error}") from None
    if value is not None and getattr(type(value), "__hash__", None) is object.__hash__:
        raise ConfigError(
            f"{name} {key!r} equals no other object: use text, numbers, or tuples, lists and dicts of them"
        )
    return value  # type: ignore[no-any-return]


def check_ragged(rewards: Sequence[Sequence[float]], **others: Sequence[Sequence[object]] | None) -> None:
    """Check that each argument has a list for each trajectory, and that the list has an entry for each turn."""
    for name, rows in (("rewards", rewards), *others.items()):
        if rows is None:
            continue
        for number, row in enumerate(rows):
            if not isinstance(row, Sequence) or isinstance(row, str):
                raise ConfigError(
                    f"{name}[{number}] is {row!r}, expected the list of a trajectory's turns: one list per trajectory"
                )
        if len(rows) != len(rewards):
            raise ConfigError(f"{name} has {len(rows)} lists, expected one for each of the {len(rewards)} trajectories")
        for number, (row, turns) in enumerate(zip(rows, rewards, strict=True)):
            if len(row) != len(turns):
                raise ConfigError(f"{name}[{number}] has {len(row)} entries, expected {len(turns)}, one per turn")


def check_finite(rewards: Sequence[Sequence[float]]) -> None:
    """Check that rewards are finite numbers; the error names the first that is not."""
    for number, row in enumerate(rewards):
        for turn, reward in enumerate(row):
            try:
                is_finite = math.isfinite(reward)
            except TypeError:
                is_finite = False
            if not is_finite:
                raise ConfigError(f"rewards[{number}][{turn}] is {plain(reward)!r}, expected a finite number")


def check_rows(name: str, value: Any, num_turns: NDArray[np.int64]) -> None:
    """Check a column that is given as one list per trajectory, and name the list that is too short or too long.

    Args:
        name: the column, as in ``column 'entropy'``.
        num_turns: number of turns of each trajectory.
    """
    if not isinstance(value, list | tuple) or not all(is_list(row) for row in value):
        return
    if len(value) != len(num_turns):
        raise ConfigError(f"{name} has {len(value)} lists, expected one for each of {len(num_turns)} trajectories")
    for number, (row, turns) in enumerate(zip(value, num_turns.tolist(), strict=True)):
        if len(row) != turns:
            raise ConfigError(f"{name}: list {number} has {len(row)} entries, expected {turns}, one per turn")


def column_of(name: str, value: Any) -> Any:
    """Return the values of a column as an array of its type; text columns and those per trajectory as tuples.

    Args:
        name: the column.
        value: an array, a flat list, or one list per trajectory.

    Raises:
        ConfigError: a value is of another kind, as ``"yes"`` for True or False, or 1.5 for a whole number.
    """
    if value is None or isinstance(value, Mapping):
        return value
    if name in ("part_names", "group_keys"):
        return tuple(value)
    if name == "part_roles":
        return tuple(role_named(role, "of column part_roles") for role in value)
    if name in PER_TRAJECTORY:
        return tuple(_of_trajectory(name, number, row) for number, row in enumerate(value))
    is_nested = isinstance(value, list | tuple) and any(is_list(row) for row in value)
    flat = _flat(name, value) if is_nested and name not in ("q_value", "part_values") else value
    return tuple(flat) if name == "observation" else _typed(name, flat)


def role_named(name: str, where: str) -> RewardRole:
    """Return the role of that name.

    Raises:
        ConfigError: there is no such role.
    """
    require_known("role", name, [role.value for role in RewardRole], where)
    return RewardRole(name)


def _of_trajectory(name: str, number: int, value: Any) -> Any:
    num_dimensions, axes = (2, "[C, R]") if name == "answer_logprobs" else (1, "[R]")
    try:
        array = np.asarray(plain(value), dtype=np.float64 if num_dimensions == 2 else np.int64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"column {name!r}: entry {number} is no array of numbers; {error}") from None
    if array.size and array.ndim != num_dimensions:
        raise ConfigError(f"column {name!r}: entry {number} has the shape {array.shape}, expected {axes}")
    return array


def _flat(name: str, value: Sequence[Any]) -> list[object]:
    for number, row in enumerate(value):
        if not is_list(row):
            raise ConfigError(
                f"column {name!r}: entry {number} is {row!r} among lists; give one list per trajectory, or none"
            )
    return [item for row in value for item in plain(row)]


def _array(value: Any) -> NDArray[Any]:
    """Return an array typed by its values: of a bfloat16 tensor, one with a gradient, or an array of objects."""
    is_numeric = isinstance(value, np.ndarray) and value.dtype != np.object_
    return np.asarray(value if is_numeric else plain(value))


def _typed(name: str, value: Any) -> Any:
    dtype = DTYPES[name]
    try:
        given = _array(value)
        with np.errstate(invalid="ignore"):
            made: Any = given.astype(dtype)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"column {name!r}: expected {_EXPECTED[dtype]}; {error}") from None
    differs = given.dtype.kind not in "biuf" if dtype is not np.float64 else given.dtype.kind == "U"
    if differs or (dtype is not np.float64 and (made != given).any()):
        wrong = plain(given.reshape(-1)[int(np.argmax((made != given).reshape(-1)))]) if given.size else value
        raise ConfigError(f"column {name!r} holds {wrong!r}, expected {_EXPECTED[dtype]}")
    if name.startswith("num_") and made.min(initial=0) < 0:
        raise ConfigError(f"column {name!r} holds {made.min()}, expected counts from 0 on; leave out padding")
    if made.ndim != 1 and not (made.ndim == 2 and name in ("q_value", "part_values")):
        raise ConfigError(f"column {name!r} has the shape {made.shape}, expected one entry per row")
    return made


def read_only(column: Any) -> Any:
    """Return a view of an array that cannot be changed in place; anything else as it is."""
    if isinstance(column, np.ndarray) and column.flags.writeable:
        column = column.view()
        column.flags.writeable = False
    return column
