"""The types that run through the trainer: models, tokenizers, metrics and states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CausalLM: TypeAlias = "PreTrainedModel"
"""A transformers causal language model; with adapters or on several ranks, peft's or FSDP's wrapper of one."""
Trunk: TypeAlias = "PreTrainedModel"
"""The network below a causal language model's head: token ids to hidden states."""
Tokenizer: TypeAlias = "PreTrainedTokenizerBase"

Metrics: TypeAlias = dict[str, float]
"""Numbers about a training step, by name."""
StateDict: TypeAlias = dict[str, Any]
"""What a ``state_dict`` method returns: names of tensors, numbers, and lists and dicts of them."""
