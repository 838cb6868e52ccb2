"""Settings with which a run fits GPUs of a size, the fastest ones first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from agentgym.errors import ConfigError, UsageError
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.rank_limits import check_ranks
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.decoder import Sizes, WeightCounts
from agentgym.trainers.planning.footprint import footprint
from agentgym.trainers.planning.microbatch import auto_tokens

NUM_GPUS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of GPUs that are tried where none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Settings that fit. They change memory and speed, not the algorithm."""

    num_ranks: int
    settings: tuple[str, ...]
    total: int
    """Bytes on the first rank."""

    def command(self, recipe: str) -> str:
        """Return the command that starts the run with these settings; ``...`` stands for the user's own values."""
        words = " ".join((recipe, "...", *self.settings))
        if self.num_ranks == 1:
            return f"agentgym train {words}"
        return f"torchrun --nproc-per-node {self.num_ranks} -m agentgym train {words}"


def propose(
    config: TrainConfig, sizes: Sizes, weights: WeightCounts, gpu_bytes: int, num_ranks: int | None = None
) -> Proposal | None:
    """Return settings with which a run fits GPUs of ``gpu_bytes`` bytes each, or None if none of those tried do.

    Args:
        num_ranks: number of GPUs; by default the smallest number that fits.
    """
    for count in NUM_GPUS if num_ranks is None else (num_ranks,):
        with suppress(UsageError):  # the configuration needs a single rank, say
            check_ranks(config, count)
            for settings in _candidates(config):
                with suppress(ConfigError):  # settings that do not go together, such as compiled and recomputed layers
                    changed = apply_overrides(config, ["loss.tokens_per_microbatch=auto", *settings])
                    tokens = auto_tokens(changed, sizes, weights, count, gpu_bytes)
                    changed = apply_overrides(changed, [f"loss.tokens_per_microbatch={tokens}"])
                    total = footprint(changed, sizes, weights, count, on_gpu=True).total
                    if total <= gpu_bytes:
                        own = (*settings, f"loss.tokens_per_microbatch={tokens}")
                        return Proposal(num_ranks=count, settings=own, total=total)
    return None


def _candidates(config: TrainConfig) -> Iterator[tuple[str, ...]]:
    """Yield changes from the fastest on: none, layers computed again, and ever fewer episodes at a time."""
    yield ()
    recomputed = () if config.loss.recompute_activations else ("loss.recompute_activations=true",)
    if recomputed:
        yield recomputed
    episodes = config.group.num_envs // 2
    while episodes:
        yield (*recomputed, f"group.num_envs={episodes}")
        episodes //= 2
