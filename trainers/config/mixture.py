"""The environments of a run that trains on several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.errors import ConfigError

CHANGEABLE = ("credit", "columns", "group", "context", "strategy", "judge", "sampling", "sft", "eval")
"""Parts of the configuration that each environment of a mixture may override."""
OF_SFT = ("num_demos", "noise", "keep", "without_oracle")
"""The keys of ``sft`` that an environment may override: those of its demonstrations, not those of the phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedEnv:
    """One environment of a mixture. Its ``credit``, ``group`` and so on override single values of the run's.

    Example:
        >>> MixedEnv(id="agentgym/WikiWorld-v0", weight=2, credit={"estimator": "igpo"}).name
        'wikiworld'
    """

    id: str
    """Registered id, ``module:Id`` or ``file.py:Id``."""
    name: str = ""
    """Name in metrics and folders; by default derived from the id."""
    weight: float = 1.0
    """Share of the groups, relative to the weights of the other environments."""
    final_weight: float | None = None
    """Weight at the last step; the weight changes linearly towards it. None keeps it constant."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    num_train_tasks: int = 0
    """Number of training tasks to use, the first of the split, over and over; 0 uses all."""
    credit: Mapping[str, object] = field(default_factory=dict)
    group: Mapping[str, object] = field(default_factory=dict)
    context: Mapping[str, object] = field(default_factory=dict)
    strategy: Mapping[str, object] = field(default_factory=dict)
    judge: Mapping[str, object] = field(default_factory=dict)
    sampling: Mapping[str, object] = field(default_factory=dict)
    sft: Mapping[str, Any] = field(default_factory=dict)
    """Only ``num_demos``, ``noise``, ``keep`` and ``without_oracle``."""
    eval: Mapping[str, object] = field(default_factory=dict)
    columns: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.id))
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise ConfigError(f"envs: name {self.name!r} must be letters, digits, '_', '.' and '-'")
        if self.weight < 0 or (self.final_weight is not None and self.final_weight < 0):
            raise ConfigError(f"envs: the weights of {self.name} must be at least 0")
        if other := sorted(set(self.sft) - set(OF_SFT)):
            raise ConfigError(f"envs.{self.name}.sft.{other[0]}: an environment sets {', '.join(OF_SFT)} alone")

    @property
    def changes(self) -> dict[str, Mapping[str, object]]:
        """The values that override the run's, by part of the configuration."""
        return {part: getattr(self, part) for part in CHANGEABLE if getattr(self, part)}

    def weight_at(self, step: int, num_steps: int) -> float:
        """Return the weight at a step of the run."""
        if self.final_weight is None or num_steps < 2:
            return self.weight
        done = min(step, num_steps - 1) / (num_steps - 1)
        return self.weight + (self.final_weight - self.weight) * done


def check_mixture(envs: Sequence[MixedEnv]) -> None:
    """Check names and weights of a mixture's environments.

    Raises:
        ConfigError: two have one name, or all weights are 0 at the start or at the end.
    """
    names = [env.name for env in envs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"envs: {', '.join(twice)} is the name of two environments; give each a 'name' of its own")
    for when, step in (("the first", 0), ("the last", 1)):
        if envs and not sum(env.weight_at(step, 2) for env in envs):
            raise ConfigError(f"envs: all weights are 0 at {when} step; give one environment a weight above 0")


def _name_of(env_id: str) -> str:
    """Return a short name, as in ``wikiworld`` for ``agentgym/WikiWorld-v0``."""
    bare = re.sub(r"-v\d+$", "", re.split(r"[/:]", env_id)[-1])
    return re.sub(r"[^a-z0-9_.-]", "-", bare.lower()).lstrip("_.-") or "env"
