"""Sizes and weight counts of a decoder-only model, computed from its ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentgym.trainers.models.config import LoraSettings

COUNTED: Final = ("llama", "qwen2", "qwen3")
"""Values of ``model_type`` whose weights this module can count; other models must be built to be counted."""
NEEDED: Final = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "tie_word_embeddings",
)  # fmt: skip
"""Keys of a ``config.json`` that the sizes of a model are read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a decoder that its memory depends on.

    Example:
        >>> shape = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
        >>> sizes = Sizes.read(shape | {"vocab_size": 100, "model_type": "qwen2", "num_key_value_heads": 2})
        >>> sizes.head_dim, sizes.heads, sizes.kv_heads
        (16, 64, 32)
    """

    model_type: str
    hidden: int
    intermediate: int
    layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    is_tied: bool
    """True if the vocabulary head shares its weights with the embedding."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Sizes:
        """Read the sizes from a ``config.json`` (Llama, Qwen2, Qwen3 and models with the same structure).

        Raises:
            KeyError: it is not the configuration of a decoder-only model.
        """
        num_heads = values["num_attention_heads"]
        return cls(
            model_type=values.get("model_type", ""),
            hidden=values["hidden_size"],
            intermediate=values["intermediate_size"],
            layers=values["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=values.get("num_key_value_heads") or num_heads,
            head_dim=values.get("head_dim") or values["hidden_size"] // num_heads,
            vocab=values["vocab_size"],
            is_tied=bool(values.get("tie_word_embeddings")),
        )

    @property
    def heads(self) -> int:
        """Total width of the queries over all heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_heads(self) -> int:
        """Total width of the keys, which is also that of the values."""
        return self.num_kv_heads * self.head_dim

    @property
    def has_qk_norm(self) -> bool:
        """True if queries and keys are normalised per head."""
        return self.model_type == "qwen3"

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of a layer's matrices by name, as (in, out)."""
        up, down = (self.hidden, self.intermediate), (self.intermediate, self.hidden)
        keys = (self.hidden, self.kv_heads)
        attention = {"q_proj": (self.hidden, self.heads), "k_proj": keys, "v_proj": keys}
        return {**attention, "o_proj": (self.heads, self.hidden), "gate_proj": up, "up_proj": up, "down_proj": down}

    def kv_bytes_per_token(self, bytes_per_number: int) -> int:
        """Return the bytes of keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * bytes_per_number


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCounts:
    """Numbers of weights of a model by their place."""

    own: int
    """Weights of the model itself, without adapters."""
    adapters: int
    """Weights of all adapters; if there are any, the weights of the decoder below them are not trained."""
    matrices: int
    """Weights in the matrices of all layers, without adapters."""
    layer: int
    """Weights in one layer of the decoder, with its adapters."""
    senses: int = 0
    """Weights of a vision tower and its projector, which are among ``own``."""
    trains_senses: bool = False
    """True if these are trained, too."""

    @property
    def all(self) -> int:
        """Number of weights of the model with its adapters."""
        return self.own + self.adapters

    @property
    def trained(self) -> int:
        """Number of weights that have gradients."""
        return (self.adapters or self.own - self.senses) + (self.senses if self.trains_senses else 0)


def is_counted(values: Mapping[str, object], lora: LoraSettings) -> bool:
    """Return True if :func:`count_weights` knows every weight of a ``config.json`` and of the adapters on it."""
    if values.get("model_type") not in COUNTED or any(name not in values for name in NEEDED):
        return False
    if values["model_type"] == "qwen3" and "head_dim" not in values:  # whose default is no quotient
        return False
    has_more = any(values.get(name) for name in ("attention_bias", "mlp_bias", "quantization_config"))
    return not has_more and set(lora.target_modules) <= set(Sizes.read(values).matrices)


def count_weights(sizes: Sizes, lora: LoraSettings) -> WeightCounts:
    """Return the numbers of weights of a Llama, Qwen2 or Qwen3 with adapters."""
    matrices = sum(rows * columns for rows, columns in sizes.matrices.values())
    vectors = 2 * sizes.hidden
    if sizes.model_type == "qwen2":
        vectors += sizes.heads + 2 * sizes.kv_heads  # biases
    if sizes.has_qk_norm:
        vectors += 2 * sizes.head_dim
    adapters = lora.rank * sum(sum(sizes.matrices[name]) for name in lora.target_modules)
    vocabulary = sizes.vocab * sizes.hidden * (1 if sizes.is_tied else 2)
    return WeightCounts(
        own=vocabulary + sizes.hidden + sizes.layers * (matrices + vectors),
        adapters=sizes.layers * adapters,
        matrices=sizes.layers * matrices,
        layer=matrices + vectors + adapters,
    )
