"""The state that credit carries from batch to batch: plain numbers by name, so that a checkpoint stores it as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditState:
    """The memory of trackers, baselines and curricula. It is immutable: an update returns a new state.

    Example:
        >>> state = CreditState(step=3, memory={"spo": {"task-1": (3.1, 4.9)}})
        >>> CreditState.from_dict(state.to_dict()) == state
        True
    """

    step: int = 0
    """Number of batches credited so far, which curricula count by."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """The memory that each component returned last, by component name: SPO's (alpha, beta) of each task, RAE's
    baseline of each role, OTC's fewest calls for each task."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> CreditState:
        """Return the state that :meth:`to_dict` wrote, also if it was stored as JSON in between."""
        return cls(step=int(tree.get("step", 0)), memory=_with_tuples(tree.get("memory", {})))


def _with_tuples(value: object) -> Any:
    """Turn lists back into tuples, which JSON cannot represent."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(_with_tuples(inner) for inner in value) if isinstance(value, list | tuple) else value
