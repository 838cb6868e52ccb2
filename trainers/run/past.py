"""Roles of the past: earlier versions of the policy, as opponents in self-play.

``self:N`` plays the newest version, ``league:N`` draws one for each step. A version against which the policy has won
less is drawn more often, as in prioritized fictitious self-play. Source: "Grandmaster level in StarCraft II using
multi-agent reinforcement learning" (AlphaStar), methods; its weight of a version is ``(1 - win rate) ** p``, here with
p = 1, a prior of one game of each result, and no less than a tenth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from agentgym.engine import Engine
from agentgym.errors import CorruptDataError
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.roles import Past
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.adapters import replace_weights
from agentgym.trainers.models.model import copy_of_trained, never_trained
from agentgym.trainers.types import CausalLM
from agentgym.types import TrajectoryGroup

Results: TypeAlias = dict[int, tuple[float, int]]
"""For each version, the policy's successes against it and the number of episodes."""
LEAST_WEIGHT = 0.1


class PastPolicy:
    """An earlier version of the policy with an engine of its own.

    Args:
        model: the policy, which is copied; only its trained weights are kept for versions.
        make_engine: makes an engine over the copy.
        folder: folder of the versions.
        name: name of the role, for the draws.
    """

    def __init__(
        self,
        past: Past,
        config: TrainConfig,
        model: CausalLM,
        folder: Path,
        name: str,
        make_engine: Callable[[CausalLM], Engine],
    ) -> None:
        self._past, self._config, self._folder, self._name = past, config, folder, name
        self._trained = [key for key, weight in model.named_parameters() if weight.requires_grad]
        self._model = never_trained(copy_of_trained(model))
        self.engine = make_engine(self._model)
        self.version = -1

    def keep(self, model: CausalLM, step: int) -> None:
        """Write the policy's weights after a step, if a later step may play them, and delete those that none will."""
        from safetensors.torch import save_file

        if step % self._past.every:
            return
        if step == self.version:  # of before the warm start, say
            self.version = -1
        self._folder.mkdir(parents=True, exist_ok=True)
        weights = {key: weight.detach().cpu().contiguous() for key, weight in model.named_parameters()}
        partial = self._path(step).with_suffix(".partial")
        save_file({key: weights[key] for key in self._trained}, partial)
        partial.replace(self._path(step))
        if self._past.is_league:
            return
        # a run that resumes from its checkpoint before the last plays its steps again
        oldest = step - 3 * self._config.checkpoint_every - self._past.every
        for path in self._folder.glob("step-*.safetensors"):
            if int(path.stem.removeprefix("step-")) < oldest:
                path.unlink()

    async def begin_step(self, step: int, results: Results | None) -> None:
        """Load the version that plays in a step; without results the newest one."""
        version = self._past.version(step) if results is None else self._drawn(step, results)
        if version != self.version:
            self._load(version)
            self.version = version
            await self.engine.update_weights(version)

    def counted(self, groups: Iterable[TrajectoryGroup], results: Results) -> Results:
        """Return results with those of the episodes of a step's groups, which met the present version."""
        met = [
            one
            for group in groups
            for one in group.valid
            if one.replayed_step is None and any(segment.role == self._name for segment in one.frozen_segments)
        ]
        wins, num = results.get(self.version, (0.0, 0))
        return results | {self.version: (wins + sum(bool(one.success) for one in met), num + len(met))}

    def _drawn(self, step: int, results: Results) -> int:
        versions = self._past.versions(step)
        if not self._past.is_league:
            return versions[-1]
        weights = np.array([_weight(results.get(version, (0.0, 0))) for version in versions])
        rng = np.random.default_rng(derive_seed(self._config.seed, "league", self._name, step))
        return int(rng.choice(versions, p=weights / weights.sum()))

    def _load(self, version: int) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._path(version)
        try:
            weights = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CorruptDataError(
                f"the policy's version of step {version}, which roles.{self._name} plays, cannot be read: {error}"
            ) from error
        replace_weights(self._model, weights)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}.safetensors"


def _weight(result: tuple[float, int]) -> float:
    """Return the weight of a version in a draw, from wins and games."""
    wins, num = result
    return max(LEAST_WEIGHT, 1 - (wins + 1) / (num + 2))
