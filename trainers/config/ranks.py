"""Limits of several ranks that train one model together."""

from __future__ import annotations

from agentgym.errors import ConfigError
from agentgym.trainers.config.train import MADE_BY_TRAINER, TrainConfig, needed_columns


def check_ranks(config: TrainConfig, num_ranks: int) -> None:
    """Refuse what several ranks cannot do together yet.

    Raises:
        ConfigError: naming it, and what to do.
    """
    if num_ranks == 1:
        return
    made = [name for name in needed_columns(config.credit) if name in MADE_BY_TRAINER]
    hindrances = [
        *([f"columns that the model makes ({', '.join(sorted(made))})"] if made else []),
        *(["a KL term, whose reference would have to be cut up too"] if config.loss.regulariser("kl") else []),
        *(["a loss that needs the whole update first"] if config.loss.needs_whole_update else []),
        *(["pipeline.mode=periodic"] if config.pipeline.mode == "periodic" else []),
        *(["loss.precision=bfloat16, which is tried on one alone"] if config.loss.precision == "bfloat16" else []),
        *(["LoRA, whose adapters fit on one"] if config.model.lora.rank else []),
        *(["sft.trainer=trl"] if config.sft.trainer == "trl" and config.sft.has_phase else []),
    ]
    if hindrances:
        raise ConfigError(
            f"{num_ranks} ranks cannot train with {'; '.join(hindrances)}: start one process without torchrun"
        )
