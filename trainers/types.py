"""Types that many modules of the trainer share: models, tokenizers, metrics and states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

if TYPE_CHECKING:  # torch and transformers take seconds to import
    from torch import Tensor, device, dtype, nn
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Metrics: TypeAlias = dict[str, float]
"""Numbers about a training step, by name."""
StateDict: TypeAlias = dict[str, Any]
"""The result of a ``state_dict`` method: tensors, numbers, and lists and dicts of them, by name."""
ModelShape: TypeAlias = "PreTrainedConfig"
"""The transformers configuration of a model: its architecture and sizes."""
Tokenizer: TypeAlias = "PreTrainedTokenizerBase"


class LogitsOutput(Protocol):
    """Output of a causal language model."""

    @property
    def logits(self) -> Tensor:
        """``[B, T, V]`` for B rows of T tokens and a vocabulary of V."""
        ...


class StatesOutput(Protocol):
    """Output of the trunk of a causal language model."""

    @property
    def last_hidden_state(self) -> Tensor:
        """``[B, T, hidden]`` for B rows of T tokens."""
        ...


class HasParameters(Protocol):
    """The part of any module that sharding needs."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def modules(self) -> Iterator[nn.Module]: ...


class _Network(HasParameters, Protocol):
    """The part of ``torch.nn.Module`` and ``transformers.PreTrainedModel`` that the trainer uses."""

    training: bool

    @property
    def config(self) -> ModelShape: ...
    @property
    def device(self) -> device: ...
    @property
    def dtype(self) -> dtype: ...
    def train(self, mode: bool = True) -> object: ...
    def eval(self) -> Self: ...
    def zero_grad(self) -> None: ...
    @property
    def to(self) -> Callable[..., object]: ...


class Trunk(_Network, Protocol):
    """The network below the head of a causal language model: token ids to hidden states."""

    def __call__(self, *, input_ids: Tensor, use_cache: bool | None = None, **layout: object) -> StatesOutput: ...


class CausalLM(_Network, Protocol):
    """A transformers causal language model, or peft's wrapper of one; FSDP shards it in place."""

    def __call__(self, input_ids: Tensor, use_cache: bool | None = None) -> LogitsOutput: ...
    def get_input_embeddings(self) -> nn.Module: ...
    def get_output_embeddings(self) -> nn.Module: ...
    @property
    def named_parameters(self) -> Callable[..., Iterator[tuple[str, nn.Parameter]]]: ...
    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...
    def get_submodule(self, target: str) -> nn.Module: ...
    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state_dict: Mapping[str, object], strict: bool = True) -> object: ...
    def activation_checkpointing_enable(self, kwargs: Mapping[str, object], /) -> object: ...
    def activation_checkpointing_disable(self) -> object: ...
    def gradient_checkpointing_enable(self, kwargs: Mapping[str, object], /) -> object: ...
    def gradient_checkpointing_disable(self) -> object: ...
    def save_pretrained(self, folder: str | Path, /) -> object: ...


class Decoder(Trunk, Protocol):
    """The trunk of Llama, Qwen2 and Qwen3, with the weights that agentgym's own engine reads."""

    layers: Sequence[nn.Module]
    embed_tokens: nn.Embedding
    norm: nn.Module
    rotary_emb: nn.Module


class PlainCausalLM(CausalLM, Protocol):
    """A causal language model of transformers itself, without peft's wrapper."""

    model: Decoder
    generation_config: object

    @property
    def lm_head(self) -> nn.Linear: ...
    @property
    def base_model(self) -> Trunk: ...


def unwrapped(model: CausalLM) -> PlainCausalLM:
    """Return the model under peft's wrapper, or the model itself if it has none."""
    inner: Any = model
    plain: PlainCausalLM = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    return plain
