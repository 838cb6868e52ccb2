"""Columns that a component of the loss reads by the name of a parameter: declared once, computed where they are read.

A column has a unit (one value per group, trajectory, turn or token) and a phase, which says when it is known:

* ``record``: from the episodes of a group. The function takes ``turn``, ``trajectory`` or ``group``, the objects of
  :mod:`agentgym.types`, and is called for each of the finest that it names;
* ``step``: from other columns of a step's trajectories or groups, as arrays over all of them, on all ranks;
* ``update``: from other columns of a micro-batch's tokens, as tensors ``[N]``.

Components read all columns per token: the value of a turn, a trajectory or a group is that of each of its tokens. A
user's file declares columns beside the components that read them::

    @column("num_calls", unit="turn")
    def num_calls(turn: Turn) -> float:
        return len(turn.action.calls)

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.table import Floats
from agentgym.errors import ConfigError, blamed, unknown_name
from agentgym.plugins import Component, F, Registry
from agentgym.types import Trajectory, TrajectoryGroup, Turn

Unit = Literal["group", "trajectory", "turn", "token"]
Phase = Literal["record", "step", "update"]
UNITS: tuple[Unit, ...] = ("group", "trajectory", "turn", "token")
OBJECTS: tuple[Unit, ...] = ("turn", "trajectory", "group")
"""Parameters of a column of phase ``record``, finest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Component):
    """A column: its function, its unit and the phase in which it is computed."""

    unit: Unit = "token"
    phase: Phase = "record"
    dtype: Literal["float", "int"] = "float"
    """Type of its tensors: float32 or int64."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names that the function takes."""
        return tuple(signature(self.call).parameters)


class ColumnRegistry(Registry[Column]):
    """The columns by name. What a function takes is checked by :func:`resolve`, when all columns are known."""

    def unfilled(self, component: Column) -> list[str]:
        """Return nothing: a file may declare a column after one that reads it."""
        return []

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names for columns that the trainer has without a function."""
        self.reserved = frozenset(names)

    reserved: frozenset[str] = frozenset()


COLUMNS = ColumnRegistry("column", "agentgym.trainers.data.own_columns", ())


def column(name: str, *, unit: Unit, phase: Phase = "record", **metadata: Any) -> Callable[[F], F]:
    """Register a column, which components of the loss read by the name of a parameter.

    Args:
        name: its name; a parameter of that name receives it.
        unit: ``group``, ``trajectory``, ``turn`` or ``token``: what has one value. A function that is called for
            something coarser returns a sequence, such as one number for each sampled token of a turn.
        phase: ``record``, ``step`` or ``update``, see the module.
        metadata: further fields of :class:`Column`, such as ``paper``.

    Raises:
        ConfigError: the unit, the phase or a parameter does not exist in that phase.

    Example:
        >>> @column("episode_length", unit="trajectory", paper="ours")
        ... def episode_length(trajectory):
        ...     return len(trajectory.turns)
        >>> COLUMNS["episode_length"].unit
        'trajectory'
    """
    if unit not in UNITS:
        raise unknown_name("unit", unit, UNITS, f"column {name!r}")
    if phase not in ("record", "step", "update"):
        raise unknown_name("phase", phase, ("record", "step", "update"), f"column {name!r}")
    if not name.isidentifier():
        raise ConfigError(f"column {name!r} is read by a parameter of its name: take a name of letters, digits and _")

    def register(function: F) -> F:
        if metadata.get("status") is None:
            metadata["status"] = "user"
        if name in COLUMNS.reserved:
            raise ConfigError(f"column {name!r} is one of the trainer's own; choose another name")
        made = Column(name=name, family="column", function=function, unit=unit, phase=phase, **metadata)
        _check(made)
        COLUMNS.add(made)
        return function

    return register


def _check(made: Column) -> None:
    """Check what a column's function takes, as far as one column tells."""
    objects = [name for name in made.parameters if name in OBJECTS]
    if made.phase == "record" and (not objects or len(objects) < len(made.parameters)):
        raise ConfigError(
            f"column {made.name!r} takes {', '.join(made.parameters) or 'nothing'}; in phase record a function takes "
            "turn, trajectory or group"
        )
    if made.phase == "record" and UNITS.index(made.unit) < UNITS.index(_finest(made)):
        raise ConfigError(
            f"column {made.name!r} has one value per {made.unit}, and its function takes each {_finest(made)}: take "
            f"{made.unit} instead"
        )
    if made.phase == "step" and made.unit not in ("group", "trajectory"):
        raise ConfigError(f"column {made.name!r}: in phase step the unit is group or trajectory, got {made.unit}")
    if made.phase == "update" and made.unit != "token":
        raise ConfigError(f"column {made.name!r}: in phase update the unit is token, got {made.unit}")
    if made.phase != "record" and not made.parameters:
        raise ConfigError(f"column {made.name!r} takes nothing; in phase {made.phase} a function takes other columns")


def _finest(made: Column) -> Unit:
    """Return the object that a function of phase ``record`` is called for."""
    return next(name for name in OBJECTS if name in made.parameters)


def resolve(names: Iterable[str], given: Collection[str]) -> tuple[Column, ...]:
    """Return the columns to compute, each after those that it reads.

    Args:
        names: the columns that components read.
        given: columns that the trainer has without a function, such as ``logprob``.

    Raises:
        ConfigError: nothing provides a column, or columns read each other in a circle; the message names them.
    """
    ordered: dict[str, Column] = {}

    def visit(name: str, readers: tuple[str, ...]) -> None:
        if name in given or name in ordered:
            return
        if name in readers:
            raise ConfigError(f"columns read each other: {' -> '.join((*readers[readers.index(name) :], name))}")
        found = COLUMNS._all().get(name)
        if found is None:
            whose = f"column {readers[-1]!r} reads it, and " if readers else ""
            raise unknown_name("column", name, {*given, *COLUMNS}, f"{whose}nothing provides it")
        for other in () if found.phase == "record" else found.parameters:
            visit(other, (*readers, name))
            _check_phases(found, other)
        ordered[name] = found

    for name in names:
        visit(name, ())
    return tuple(ordered.values())


def read_by_columns(columns: Iterable[Column]) -> set[str]:
    """Return the names that columns read of a step or of an update."""
    return {name for one in columns if one.phase != "record" for name in one.parameters}


def _check_phases(reader: Column, name: str) -> None:
    """Refuse a step's column that reads what is known per turn or token, or only in an update."""
    if reader.phase != "step":
        return
    other = COLUMNS._all().get(name)
    if other is None or other.phase == "update" or other.unit not in ("group", "trajectory"):
        kind = f"per {other.unit}" if other is not None and other.phase != "update" else "in an update alone"
        raise ConfigError(
            f"column {reader.name!r} is computed over a step's trajectories, and {name!r} is known {kind}: "
            "declare it with phase='update'"
        )


# ------------------------------------------------------------------------- from episodes to a value per sampled token


def record_columns(group: TrajectoryGroup, columns: Sequence[Column]) -> dict[str, Floats]:
    """Return columns of phase ``record`` over a group's units: one value for each of its unit, in order.

    Raises:
        ConfigError: a function raised an error, or returned another number of values; the message names the column.
    """
    return {one.name: _over_units(group, one) for one in columns if one.phase == "record"}


def _over_units(group: TrajectoryGroup, made: Column) -> Floats:
    pieces: list[Floats] = []
    finest, function = _finest(made), made.call
    with blamed(f"column {made.name!r}"):
        for trajectory in group.valid if finest != "group" else (None,):
            for turn in trajectory.turns if finest == "turn" and trajectory is not None else (None,):
                values = {"group": group, "trajectory": trajectory, "turn": turn}
                returned = function(**{name: values[name] for name in made.parameters})
                count = _count(made.unit, group, trajectory, turn)
                pieces.append(_checked(made, returned, count, is_one=finest == made.unit))
    return np.concatenate(pieces) if pieces else np.zeros(0)


def _count(unit: Unit, group: TrajectoryGroup, trajectory: Trajectory | None, turn: Turn | None) -> int:
    """Return the number of a unit's values in the object that a function was called for."""
    members = group.valid if trajectory is None else (trajectory,)
    if unit == "group":
        return 1
    if unit == "trajectory":
        return len(members)
    turns = [one for member in members for one in member.turns] if turn is None else [turn]
    return len(turns) if unit == "turn" else sum(len(one.completion.token_ids) for one in turns)


def _checked(made: Column, returned: object, count: int, *, is_one: bool) -> Floats:
    try:
        values = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros((0, 0))
    if is_one and values.ndim == 0:
        return values[None]
    if not is_one and values.shape == (count,):
        return values
    wanted = "a number" if is_one else f"{count} numbers, one per {made.unit}"
    raise ConfigError(f"column {made.name!r} returned {returned!r:.60}, expected {wanted}")


Recorded = Mapping[int, Mapping[str, Floats]]
"""For each group by its ordinal, the values of its columns, each over its own unit."""


def step_columns(recorded: Recorded, sizes: Mapping[int, int], columns: Sequence[Column]) -> Recorded:
    """Add the columns of phase ``step`` to those of each group.

    Args:
        recorded: columns per group or trajectory of *all* groups of the step, by ordinal in order.
        sizes: number of valid trajectories of each group.
        columns: all columns in an order in which each can be computed.

    Example:
        >>> @column("place", unit="trajectory", phase="step")
        ... def place(reward, group):
        ...     return [float(sum(other > own for other in reward)) for own in reward]
        >>> made = resolve(["place"], ())
        >>> one = {"reward": np.array([1.0, 0.0]), "group": np.array([3.0])}
        >>> other = {"reward": np.array([0.5]), "group": np.array([4.0])}
        >>> found = step_columns({3: one, 4: other}, {3: 2, 4: 1}, made)
        >>> found[3]["place"].tolist(), found[4]["place"].tolist()
        ([0.0, 2.0], [1.0])
    """
    made = {ordinal: dict(own) for ordinal, own in recorded.items()}
    counts = [sizes[ordinal] for ordinal in made]
    for one in columns:
        if one.phase != "step":
            continue
        over = partial(_over_step, made, sizes, unit=one.unit)
        with blamed(f"column {one.name!r}"):
            returned = one.call(**{name: over(name) for name in one.parameters})
        num = sum(counts) if one.unit == "trajectory" else len(made)
        values = _checked(one, returned, num, is_one=False)
        ends = np.cumsum(counts if one.unit == "trajectory" else [1] * len(made))[:-1]
        for own, part in zip(made.values(), np.split(values, ends), strict=True):
            own[one.name] = part
    return made


def _over_step(made: Mapping[int, Mapping[str, Floats]], sizes: Mapping[int, int], name: str, *, unit: Unit) -> Floats:
    """Return a column over all trajectories or groups of a step; a group's value is that of its trajectories."""
    pieces = []
    of_group = COLUMNS[name].unit == "group"
    if unit == "group" and not of_group:
        raise ConfigError(f"it has one value per group and reads {name!r}, which has one per trajectory")
    for ordinal, own in made.items():
        pieces.append(np.repeat(own[name], sizes[ordinal]) if of_group and unit == "trajectory" else own[name])
    return np.concatenate(pieces) if pieces else np.zeros(0)


def over_tokens(
    group: TrajectoryGroup, values: Mapping[str, Floats], columns: Sequence[Column]
) -> dict[str, NDArray[Any]]:
    """Return a group's columns with one value per sampled token of its valid trajectories, in order."""
    turns = [turn for one in group.valid for turn in one.turns]
    of_turn = np.array([len(turn.completion.token_ids) for turn in turns], dtype=np.int64)
    ends = np.cumsum([len(one.turns) for one in group.valid], dtype=np.int64)[:-1]
    of_trajectory = np.array([part.sum() for part in np.split(of_turn, ends)], dtype=np.int64)
    counts = {"group": of_turn.sum(keepdims=True), "trajectory": of_trajectory, "turn": of_turn}
    found = {one.name: values[one.name].astype(one.dtype) for one in columns if one.phase != "update"}
    return {
        one.name: found[one.name] if one.unit == "token" else np.repeat(found[one.name], counts[one.unit])
        for one in columns
        if one.name in found
    }
