"""What several ranks that train one model together cannot do."""

from __future__ import annotations

from agentgym.errors import ConfigError
from agentgym.trainers.config.train import OF_CRITIC, TrainConfig, needed_columns


def check_ranks(config: TrainConfig, num_ranks: int) -> None:
    """Refuse what several ranks cannot do together yet.

    Raises:
        ConfigError: naming it, and what to do.
    """
    if num_ranks == 1:
        return
    made = [name for name in needed_columns(config.credit) if name in OF_CRITIC]
    hindrances = [
        *([f"columns that a critic makes ({', '.join(sorted(made))})"] if made else []),
        *(["a loss that needs the whole update first"] if config.loss.needs_whole_update else []),
        *(["pipeline.mode=periodic"] if config.pipeline.mode == "periodic" else []),
        *(["model.lora.quantize, whose packed weights are not cut up"] if config.model.lora.quantize != "none" else []),
        *(["sft.trainer=trl"] if config.sft.trainer == "trl" and config.sft.has_phase else []),
    ]
    if hindrances:
        raise ConfigError(
            f"{num_ranks} ranks cannot train with {'; '.join(hindrances)}: start one process without torchrun"
        )
