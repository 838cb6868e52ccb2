"""Shapes of models without their weights: from a folder, or from the sizes of known models below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentgym.canonical import packaged, read_json
from agentgym.errors import ConfigError, CorruptDataError, UsageError
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.decoder import COUNTED, Sizes, WeightCounts, count_weights, is_counted
from agentgym.trainers.models.sources import cached_model

KNOWN: Final[Mapping[str, Mapping[str, object]]] = packaged(__package__, "models.toml")
"""Sizes from the public ``config.json`` of known models, for plans without a network."""


def plan_model(config: ModelConfig, num_ranks: int = 1) -> tuple[Sizes, WeightCounts]:
    """Return a model's sizes and weight counts, without its weights and without a network.

    Llama, Qwen2 and Qwen3 are counted with formulas; torch is imported only for other models.

    Args:
        num_ranks: the number of ranks that are to share the model.

    Raises:
        UsageError: the folder does not exist and the name is not a known model, or the model cannot be built, or its
            weights are quantized in a way that cannot be turned into floating point.
        ConfigError: ranks cannot share the model.
        CorruptDataError: the folder's configuration cannot be read.
    """
    values = read_values(config)
    if is_counted(values, config.lora):
        sizes = Sizes.read(values)
        return sizes, count_weights(sizes, config.lora)
    from agentgym.trainers.models.meta import check_shared, check_stored, count_built, meta_model

    check_stored(values, config)
    model = meta_model(values, config.lora)
    if num_ranks > 1:
        check_shared(model, num_ranks)
    return count_built(model, trains_senses=config.vision == "trained")


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
            f"{', '.join(KNOWN)}; a folder with its config.json alone is enough, or run agentgym "
            "model import SOURCE FOLDER"
        )
    path = folder / "config.json"
    try:
        values = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or "model_type" not in values:
        raise CorruptDataError(f"{path} cannot be read: it is no model's configuration, which names its model_type")
    return values


def check_positions(values: Mapping[str, Any], max_context_tokens: int) -> str:
    """Return a note if the longest conversation has more tokens than the model was made for; empty if it has not.

    Rotary embeddings go on beyond. Models that learn a vector for each position have none there.

    Args:
        values: contents of the model's ``config.json``.

    Raises:
        ConfigError: the model has no positions for them; the message has both numbers.

    Example:
        >>> check_positions({"max_position_embeddings": 2048, "rope_scaling": {"factor": 4.0}}, 8192)
        ''
        >>> check_positions({"model_type": "gpt2", "n_positions": 1024}, 4096)
        Traceback (most recent call last):
        agentgym.errors.ConfigError: model type 'gpt2' has positions for 1024 tokens, and model.max_context_tokens is \
4096: set it to 1024 (--max-context-tokens in eval)
    """
    sizes = values.get("text_config") or values
    limit: int = sizes.get("max_position_embeddings") or sizes.get("n_positions") or 0
    rotation: Mapping[str, Any] = sizes.get("rope_parameters") or sizes.get("rope_scaling") or {}
    begun: int = rotation.get("original_max_position_embeddings") or limit
    if not limit or max_context_tokens <= max(limit, begun * float(rotation.get("factor") or 1)):
        return ""
    has = f"has positions for {limit} tokens, and model.max_context_tokens is {max_context_tokens}"
    if sizes.get("model_type") in COUNTED or any(name.startswith(("rope", "rotary")) for name in sizes):
        return f"note: the model {has}: it may do worse on conversations of that length"
    raise ConfigError(f"model type {sizes.get('model_type')!r} {has}: set it to {limit} (--max-context-tokens in eval)")
