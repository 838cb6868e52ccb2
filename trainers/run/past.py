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
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from agentgym.engine import Engine
from agentgym.errors import ConfigError, CorruptDataError
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.roles import Past
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.outline import GroupMetadata
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import empty_copy_of, whole
from agentgym.trainers.models.adapters import replace_weights
from agentgym.trainers.models.model import copy_of_trained, never_trained
from agentgym.trainers.models.quantized import is_quantized, kept_state
from agentgym.trainers.types import CausalLM
from agentgym.types import TrajectoryGroup

Results: TypeAlias = dict[int, tuple[float, int]]
"""For each version, the policy's successes against it and the number of episodes."""
LEAST_WEIGHT = 0.1


class PastPolicy:
    """An earlier version of the policy with an engine of its own.

    Each rank that samples has a whole copy of the policy and an engine; the first rank writes versions, which all read.

    Args:
        model: the policy, which is copied; only its trained weights are kept for versions.
        make_engine: makes an engine over the copy.
        folder: folder of the versions.
        name: name of the role, for the draws.
        samples: True on a rank that samples.
    """

    def __init__(
        self,
        past: Past,
        config: TrainConfig,
        model: CausalLM,
        folder: Path,
        name: str,
        make_engine: Callable[[CausalLM], Engine],
        ranks: Ranks,
        *,
        samples: bool,
    ) -> None:
        self._ranks = ranks
        self._past, self._config, self._folder, self._name = past, config, folder, name
        self._trained = [key for key, weight in model.named_parameters() if weight.requires_grad]
        self._model = _whole_copy(model, is_kept=samples)
        self.engine = None if self._model is None else make_engine(self._model)
        """The engine of a rank that samples; None on others."""
        self.version = -1

    def keep(self, model: CausalLM, step: int) -> None:
        """Write the policy's weights after a step, if a later step may play them, and delete those that none will.

        All ranks must call this.
        """
        if step % self._past.every:
            return
        if step == self.version:  # of before the warm start, say
            self.version = -1
        state = kept_state(model)
        weights = {key: whole(state[key]).detach().cpu().contiguous() for key in self._trained}
        if self._ranks.is_main:
            self._write(weights, step)
        self._ranks.meet()  # before others read it

    def _write(self, weights: dict[str, Tensor], step: int) -> None:
        from safetensors.torch import save_file

        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._path(step).with_suffix(".partial")
        save_file(weights, partial)
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
        if version == self.version:
            return
        self.version = version
        if self.engine is not None:
            self._load(version)
            await self.engine.update_weights(version)

    def counted(self, groups: Iterable[TrajectoryGroup], results: Results) -> Results:
        """Return results with those of the episodes of a step's groups, which met the present version.

        Each rank counts the episodes that it played. All ranks must call this.
        """
        met = [
            bool(one.success)
            for group in groups
            if not isinstance(group, GroupMetadata)
            for one in group.valid
            if one.replayed_step is None and any(segment.role == self._name for segment in one.frozen_segments)
        ]
        of_ranks = self._ranks.gathered((sum(met), len(met)))
        wins, num = results.get(self.version, (0.0, 0))
        return results | {self.version: (wins + sum(won for won, _ in of_ranks), num + sum(n for _, n in of_ranks))}

    def _drawn(self, step: int, results: Results) -> int:
        versions = self._past.versions(step)
        if not self._past.is_league:
            return versions[-1]
        weights = np.array([_weight(results.get(version, (0.0, 0))) for version in versions])
        rng = np.random.default_rng(derive_seed(self._config.seed, "league", self._name, step))
        return int(rng.choice(versions, p=weights / weights.sum()))

    def _load(self, version: int) -> None:
        assert self._model is not None, "this rank does not play"
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


def _whole_copy(model: CausalLM, *, is_kept: bool) -> CausalLM | None:
    """Return a copy of the policy that is never trained, whole on ranks that keep one. All ranks must call this."""
    if not isinstance(model, FSDPModule):
        return never_trained(copy_of_trained(model)) if is_kept else None
    if is_quantized(model):
        raise ConfigError(
            "several ranks cannot play with versions of the past of a quantized model: train with one rank"
        )
    copied = empty_copy_of(model)
    parameters = dict(copied.named_parameters())
    for name, part in kept_state(model).items():
        gathered = whole(part)
        if is_kept:
            parameters[name].data = gathered
    return never_trained(copied) if is_kept else None


def _weight(result: tuple[float, int]) -> float:
    """Return the weight of a version in a draw, from wins and games."""
    wins, num = result
    return max(LEAST_WEIGHT, 1 - (wins + 1) / (num + 2))
