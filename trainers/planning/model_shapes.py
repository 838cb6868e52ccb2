"""Shapes of models without their weights: from a folder, or from the sizes of known models below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, UsageError
from agentgym.trainers.config.train import ModelConfig
from agentgym.trainers.models.sources import cached_model
from agentgym.trainers.planning.decoder import Sizes, Weights, count_weights, is_counted

_QWEN2_5: Final = {"model_type": "qwen2", "max_position_embeddings": 32768}
_QWEN3: Final = {"model_type": "qwen3", "max_position_embeddings": 40960, "head_dim": 128}
_QWEN2_5_7B: Final = {
    **_QWEN2_5, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3_4B: Final = {
    **_QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
KNOWN: Final[Mapping[str, Mapping[str, object]]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": {
        **_QWEN2_5, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-1.5B-Instruct": {
        **_QWEN2_5, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-7B": _QWEN2_5_7B,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN2_5_7B,
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-4B-Base": _QWEN3_4B,
    "Qwen/Qwen3-14B-Base": {
        **_QWEN3, "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": False,
    },
    "smollm2": {
        "model_type": "llama", "max_position_embeddings": 8192, "head_dim": 64, "hidden_size": 576,
        "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "vocab_size": 49152, "tie_word_embeddings": True,
    },
}  # fmt: skip
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
