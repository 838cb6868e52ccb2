"""Rows of a user in any order: sort them for a credit table, and return its results in the user's order."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.inputs import (
    NO_ROWS,
    PER_TOKEN,
    PER_TRAJECTORY,
    by_value,
    coded,
    codes_of,
    column_of,
    is_list,
    plain,
)
from agentgym.errors import ConfigError

_PER_ID = {"group_keys": "group", **dict.fromkeys(PER_TRAJECTORY, "trajectory")}
"""Columns that have one entry per group or trajectory, and the column of the ids."""


class OrderedRows(Protocol):
    """The part of a credit table that knows the order in which its rows were given."""

    @property
    def source_row(self) -> NDArray[np.int64] | None: ...

    @property
    def num_tokens(self) -> NDArray[np.int64] | None: ...


def sorted_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Sort rows by trajectory and turn.

    Args:
        columns: lists, arrays or tensors of one length; columns per token in the order of the rows.

    Returns:
        the columns of a table, with ``source_row``: the position of each row among those given.

    Raises:
        ConfigError: a column has another length or type, or a column per trajectory or group cannot be assigned.
    """
    columns = {name: column for name, column in columns.items() if column is not None}
    for name, column in columns.items():
        if not is_list(column) and not (isinstance(column, Mapping) and name in _PER_ID):
            raise ConfigError(f"column {name!r} is {column!r}, expected a list, an array or a tensor")
    num_turns = len(columns["reward"])
    for name, column in columns.items():
        if name not in NO_ROWS and len(column) != num_turns:
            raise ConfigError(f"column {name!r} has {len(column)} rows, the column 'reward' {num_turns}")
    columns = {"anchor": np.arange(num_turns), "is_valid": np.ones(num_turns, dtype=np.bool_), **columns}
    for name in _PER_ID:
        columns |= _by_id(name, columns) if name in columns else {}
    columns |= coded(columns)
    table = {name: column_of(name, column) for name, column in columns.items()}
    order = np.lexsort((table["turn"], table["trajectory"]))
    if any(name in table for name in PER_TOKEN) and "num_tokens" in table:
        place = np.argsort(order)[np.repeat(np.arange(num_turns), table["num_tokens"])]
        tokens = np.argsort(place, kind="stable")
        table |= {name: table[name][tokens] for name in PER_TOKEN if len(table.get(name, ())) == len(tokens)}
    texts = {"observation": tuple(table["observation"][row] for row in order)} if "observation" in table else {}
    rows = {name: table[name][order] for name in table if name not in (*NO_ROWS, "observation")}
    return {**table, **rows, **texts, "source_row": order}


def _by_id(name: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column per trajectory or group in the order of the table's codes, and codes of groups.

    A mapping is read by id. A sequence is taken as it is, which has a meaning only for ids that are numbers.
    """
    of = _PER_ID[name]
    ids = [by_value(key, f"the {of} id") for key in plain(columns[of])]
    if not isinstance(columns[name], Mapping):
        if all(isinstance(key, Real) for key in ids):
            return {}
        raise ConfigError(f"column {name!r}: ids of column {of!r} are text, so give a dict with an entry for each id")
    keyed = {by_value(plain(key), f"the {of} id"): value for key, value in columns[name].items()}
    wanted = list(dict.fromkeys(ids))
    if missing := [key for key in wanted if key not in keyed]:
        raise ConfigError(f"column {name!r} has no entry for {of} {missing[0]!r}")
    if of == "group":
        return {name: [keyed[key] for key in wanted], "group": codes_of(ids)}
    return {name: [keyed[key] for key in sorted(wanted)]}  # type: ignore[type-var]


def in_given_order(table: OrderedRows, values: Any) -> Any:
    """Return values of a table's rows ``[N]``, or of their sampled tokens ``[M]``, in the order of the rows given.

    Raises:
        ConfigError: the values have another length.
    """
    if table.source_row is None or values is None:
        return values
    back = np.argsort(table.source_row, kind="stable")
    if len(values) == len(back):
        return np.asarray(values)[back]
    counts = table.num_tokens
    if counts is None or len(values) != int(counts.sum()):
        tokens = "" if counts is None else f" or {int(counts.sum())} tokens"
        raise ConfigError(f"got {len(values)} values, expected one for each of {len(back)} rows{tokens}")
    place = np.argsort(back)[np.repeat(np.arange(len(back)), counts)]
    return np.asarray(values)[np.argsort(place, kind="stable")]
