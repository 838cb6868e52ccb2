"""What credit remembers from batch to batch: plain numbers under plain names, so that a checkpoint holds it as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditState:
    """The memory of trackers, baselines and curricula. Updates make a new value.

    Example:
        >>> state = CreditState(step=3, spo={"task-1": (3.1, 4.9)})
        >>> CreditState.from_dict(state.to_dict()) == state
        True
    """

    step: int = 0
    """Batches credited so far: the clock of curricula."""
    spo: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """SPO's tracker: (alpha, beta) of each task."""
    rae: Mapping[str, float] = field(default_factory=dict)
    """RAE's baseline of each role."""
    otc: Mapping[str, int] = field(default_factory=dict)
    """OTC's fewest calls among the correct rollouts of each task."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> CreditState:
        """The state that :meth:`to_dict` wrote, also after a passage through JSON."""
        spo = {key: (float(alpha), float(beta)) for key, (alpha, beta) in tree.get("spo", {}).items()}
        rae, otc = dict(tree.get("rae", {})), dict(tree.get("otc", {}))
        return cls(step=int(tree.get("step", 0)), spo=spo, rae=rae, otc=otc)
