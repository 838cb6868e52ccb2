"""The memory of credit from batch to batch: plain numbers by name, so that a checkpoint holds it as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditState:
    """The memory of trackers, baselines and curricula. Updates make a new value.

    Example:
        >>> state = CreditState(step=3, memory={"spo": {"task-1": (3.1, 4.9)}})
        >>> CreditState.from_dict(state.to_dict()) == state
        True
    """

    step: int = 0
    """Batches credited so far: the clock of curricula."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What each component with a memory returned last, by its name: SPO's (alpha, beta) of each task, RAE's baseline of
    each role, OTC's fewest calls for each task."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> CreditState:
        """Return the state that :meth:`to_dict` wrote, also after a passage through JSON."""
        return cls(step=int(tree.get("step", 0)), memory=_with_tuples(tree.get("memory", {})))


def _with_tuples(value: object) -> Any:
    """JSON has lists where the memory had tuples."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(_with_tuples(inner) for inner in value) if isinstance(value, list | tuple) else value
