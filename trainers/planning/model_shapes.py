"""Shapes of models without their weights: from a folder, or from the sizes of known models below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentgym.canonical import packaged, read_json
from agentgym.errors import CorruptDataError, UsageError
from agentgym.trainers.config.train import ModelConfig
from agentgym.trainers.models.sources import cached_model
from agentgym.trainers.planning.decoder import Sizes, Weights, count_weights, is_counted

KNOWN: Final[Mapping[str, Mapping[str, object]]] = packaged(__package__, "models.toml")
"""Sizes from the public ``config.json`` of known models, for plans without a network."""


def plan_model(config: ModelConfig) -> tuple[Sizes, Weights]:
    """Return a model's sizes and weight counts, without its weights and without a network.

    Llama, Qwen2 and Qwen3 are counted with formulas; torch is imported only for other models.

    Raises:
        UsageError: the folder does not exist and the name is not a known model, or the model cannot be built.
        CorruptDataError: the folder's configuration cannot be read.
    """
    values = read_values(config)
    if is_counted(values, config.lora):
        sizes = Sizes.read(values)
        return sizes, count_weights(sizes, config.lora)
    from agentgym.trainers.planning.meta import count_built, meta_model

    return count_built(meta_model(values, config.lora))


def read_values(config: ModelConfig) -> Mapping[str, object]:
    """Return the contents of the model's ``config.json``; for a model from scratch, the one that it would have.

    Raises:
        UsageError: the folder does not exist, and the name is not a known model.
        CorruptDataError: the folder's configuration cannot be read.
    """
    if not config.path:
        return config.network_sizes(config.vocab_size)
    if config.path in KNOWN:
        return KNOWN[config.path]
    folder = cached_model(config.path)
    if folder is None or not (folder / "config.json").is_file():
        raise UsageError(
            f"model.path: no folder {config.path!r} with a config.json, and sizes are known only of "
            f"{', '.join(KNOWN)}; fetch the model first: agentgym model import SOURCE FOLDER"
        )
    path = folder / "config.json"
    try:
        values = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or "model_type" not in values:
        raise CorruptDataError(f"{path} cannot be read: it is no model's configuration, which names its model_type")
    return values
