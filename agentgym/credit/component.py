"""The four families of credit components, each with a registry and a decorator.

A component is a function. The names of its parameters select what it receives:

* ``table``: the turns of the batch; ``options``: its settings, or the name of a single setting;
* a shared key of the configuration (estimators only: ``norm``, ``gamma``, ``step_weight``, ``statistics_unit``,
  ``invalid_penalty``);
* ``step``: the number of batches credited so far;
* ``memory``: the second value that it returned for the previous batch;
* further values that its family offers, which the decorators below document.

A new component is one file::

    @estimator("centred", paper="...")
    def centred(table: TurnTable) -> TurnAdvantages:
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError, gist, require_known, unknown_name
from agentgym.plugins import Component, F, Registry, Status, checked_options

Family = Literal["shaper", "estimator", "modulator", "selection"]
Granularity = Literal["trajectory", "turn", "token"]
"""The smallest unit within which all advantages are equal."""
Columns = tuple[str, ...] | Callable[[object], tuple[str, ...]]
"""Optional columns of the table that a component reads, or a function that returns them for given options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Settings that several estimators share: keys of ``CreditConfig`` itself, not of its ``options``."""

    norm: str = "mean_std_norm"
    gamma: float = 0.95
    step_weight: float = 1.0
    statistics_unit: str = "turn"
    invalid_penalty: float = 0.0


COLUMNS = tuple(field.name for field in fields(TurnTable))
SHARED_KEYS = tuple(field.name for field in fields(Shared))


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditComponent(Component):
    """A component of credit: its function, and the properties that the pipeline needs to know."""

    column_names: Columns = ()
    granularity: Granularity = "trajectory"
    optional_columns: tuple[str, ...] = ()
    """Columns that it reads where somebody makes them, and does without elsewhere."""
    needs_every_fault: bool = False
    """It reads ``is_faulty``, and takes a turn that is not marked for a right one, so a judge must mark all of them."""
    needs_copies: bool = False
    """It acts on episodes that copy tokens sampled in another context, so a strategy must make some."""
    compares_groups: bool = False
    """Estimators: it compares the members of a group, so a group needs at least two."""
    keeps_parts: bool = False
    """Estimators: it normalises reward parts separately, so shapers must not merge theirs into the reward."""
    tells_agents: bool = False
    """Estimators: it distinguishes the turns of sub-agents from those of the main agent."""
    is_after: bool = False
    """Selections: it reads advantages, so it runs after the estimator."""

    def __post_init__(self) -> None:
        if self.granularity not in get_args(Granularity):
            raise unknown_name("granularity", self.granularity, get_args(Granularity), f"of {self.family} {self.name}")
        if isinstance(self.column_names, str):
            raise ConfigError(
                f"{self.family} {self.name!r}: columns is text, expected names, as in columns=({self.column_names!r},)"
            )
        for name in () if callable(self.column_names) else self.column_names:
            require_known("column", name, COLUMNS, f"of {self.family} {self.name}")

    def columns(self, options: object) -> tuple[str, ...]:
        """Return the optional columns of the table that the component reads with the given options."""
        return self.column_names(options) if callable(self.column_names) else self.column_names

    def run(
        self, values: Mapping[str, object], options: object, memory: Mapping[str, object]
    ) -> tuple[Any, Mapping[str, Any]]:
        """Call the component's function.

        Args:
            values: the values that the family offers, by parameter name.
            options: the component's settings.
            memory: the memory of all components, by component name.

        Returns:
            the function's result and the memory of all components, updated if this component keeps one.

        Raises:
            ConfigError: the component takes ``memory`` but does not return a pair, or it changes an array in place.
        """
        has_memory = self.reads("memory")
        own = {"memory": memory.get(self.name, {})} if has_memory else {}
        try:
            result = self.invoke({**values, **own}, options)
        except ConfigError as error:
            if "read-only" not in str(error):
                raise
            why = gist(error.__cause__ or error)
            raise ConfigError(
                f"{self.family} {self.name!r} changes an array that it was given in place ({why}): change a copy of it"
            ) from error
        parts = result if isinstance(result, tuple) else (result,)
        if has_memory and not (len(parts) == 2 and isinstance(parts[1], Mapping)):
            raise ConfigError(
                f"{self.family} {self.name!r} takes memory, so it must return its result and the new memory, a dict; "
                f"got {', '.join(type(part).__name__ for part in parts)}"
            )
        return (result[0], {**memory, self.name: result[1]}) if has_memory else (result, memory)


SHAPERS = Registry[CreditComponent]("shaper", "agentgym.credit.shapers", ("table", "step", "merged", "memory"))
ESTIMATORS = Registry[CreditComponent](
    "estimator", "agentgym.credit.estimators", ("table", "step", "memory", *SHARED_KEYS)
)
MODULATORS = Registry[CreditComponent](
    "modulator", "agentgym.credit.modulators", ("table", "advantage", "token_advantage")
)
SELECTIONS = Registry[CreditComponent]("selection", "agentgym.credit.selections", ("table", "advantage", "step"))
FAMILIES: Mapping[str, Registry[CreditComponent]] = {
    "shaper": SHAPERS,
    "estimator": ESTIMATORS,
    "modulator": MODULATORS,
    "selection": SELECTIONS,
}


def shaper(name: str, **metadata: object) -> Callable[[F], F]:
    """Register a reward shaper: a function that returns :class:`~agentgym.credit.parts.Shaped`.

    It may take ``merged``, which is True if the shaper must add its own reward to the turns' rewards. For the keyword
    arguments see :func:`estimator`.
    """
    return _decorator("shaper", name, metadata)


def estimator(name: str, **metadata: object) -> Callable[[F], F]:
    """Register an advantage estimator: a function that returns :class:`~agentgym.credit.table.TurnAdvantages`.

    Args:
        name: its name in ``credit.estimator`` and in ``agentgym list --credit``.
        metadata: fields of :class:`CreditComponent`: ``paper``, ``parity`` (the released code it was compared with),
            ``status``, ``options`` (by default the annotation of the function's parameter), ``columns``,
            ``granularity``, ``compares_groups``, ``keeps_parts``, ``tells_agents``.

    Example:
        >>> component = ESTIMATORS["gigpo"]
        >>> component.family, component.granularity, component.options.__name__
        ('estimator', 'turn', 'GigpoOptions')
    """
    return _decorator("estimator", name, metadata)


def modulator(name: str, **metadata: object) -> Callable[[F], F]:
    """Register an advantage modulator: a function that returns :class:`~agentgym.credit.parts.Modulated`.

    For the keyword arguments see :func:`estimator`.
    """
    return _decorator("modulator", name, metadata)


def selection(name: str, **metadata: object) -> Callable[[F], F]:
    """Register a selection: a function that returns the rows that train ``[N]``, and optionally the tokens ``[M]``.

    Both are boolean masks. With ``is_after=True`` the selection runs after the estimator and may take ``advantage``.
    For the other keyword arguments see :func:`estimator`.
    """
    return _decorator("selection", name, metadata)


def _decorator(family: Family, name: str, metadata: dict[str, Any]) -> Callable[[F], F]:
    known = {**metadata, "column_names": metadata.get("columns", ())}
    known.pop("columns", None)
    named = known.pop("options", None)
    status: Status = known.pop("status", "verified" if known.get("parity") else "user")
    known.setdefault("test", f"tests/credit/test_{family}s.py::test_{name}" if status != "user" else "")

    def register(function: F) -> F:
        options = checked_options(family, name, function, named)
        component = CreditComponent(
            name=name, family=family, function=function, options=options, status=status, **known
        )
        FAMILIES[family].add(component)
        return function

    return register


def credit_table() -> tuple[CreditComponent, ...]:
    """Return every component of credit, in the order of the pipeline.

    Example:
        >>> [component.name for component in credit_table() if component.status == "experimental"][0]
        'g_ra'
    """
    return tuple(component for family in FAMILIES.values() for component in family.values())
