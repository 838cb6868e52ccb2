"""What several ranks that train one model together cannot do."""

from __future__ import annotations

from agentgym.errors import ConfigError
from agentgym.trainers.config.train import TrainConfig


def check_ranks(config: TrainConfig, num_ranks: int) -> None:
    """Refuse what several ranks cannot do together yet.

    Raises:
        ConfigError: naming it, and what to do.
    """
    if num_ranks == 1:
        return
    hindrances = [
        *(["sft.trainer=trl"] if config.sft.trainer == "trl" and config.sft.has_phase else []),
    ]
    if hindrances:
        raise ConfigError(
            f"{num_ranks} ranks cannot train with {'; '.join(hindrances)}: start one process without torchrun"
        )
