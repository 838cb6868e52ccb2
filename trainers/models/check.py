"""A check before training that the trainer's forward pass equals the model's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentgym.errors import ConfigError, error_text
from agentgym.trainers.models.head import frozen, head_of, trunk_of
from agentgym.trainers.models.head_logprobs import vocabulary_of
from agentgym.trainers.models.vision import largest_logit
from agentgym.trainers.types import CausalLM

_ROWS = ((3, 10, 17, 24, 31, 38), (3, 10, 17, 24, 5, 6))
_NUM_SHARED = 4
"""Number of tokens that the rows share."""


def max_gap(model: CausalLM) -> float:
    """Return the largest relative difference that rounding can explain, relative to the largest number.

    Matrices in half precision, or in TF32 on a GPU, are rounded to three decimal digits or fewer.
    """
    is_tf32 = model.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return 5e-2 if is_tf32 or model.dtype in (torch.bfloat16, torch.float16) else 1e-4


def check_model(model: CausalLM) -> None:
    """Compare the logits that the trainer computes from hidden states and head with the model's own.

    Raises:
        ConfigError: they differ, so losses and gradients would be those of another model, or are not finite; or the
            model is an encoder.
    """
    with frozen(model):
        ids = token_ids(model)
        try:
            made = head_of(model)(trunk_of(model)(input_ids=ids, use_cache=False).last_hidden_state)
        except Exception as error:  # of code that agentgym has not seen
            raise ConfigError(f"{_named(model)} cannot be trained here: {error_text(error)}") from error
        logits = model(input_ids=ids, use_cache=False).logits
    if not logits.isfinite().all():
        raise ConfigError(f"{_named(model)} cannot be trained: its logits are not finite, so its weights are damaged")
    check_causal(model)
    gap = relative_gap(made, logits)
    if not gap <= max_gap(model):
        raise ConfigError(
            f"{_named(model)} cannot be trained here: its logits are not its output layer applied to its hidden states "
            f"(they differ by {gap:.1%} of the largest)"
        )


def check_causal(model: CausalLM) -> None:
    """Check that later tokens change no logits of earlier ones, as they do in encoders such as BERT.

    transformers loads these as causal language models, too.

    Raises:
        ConfigError: they do.
    """
    try:
        with frozen(model):
            one, other = model(input_ids=token_ids(model), use_cache=False).logits[:, :_NUM_SHARED]
    except Exception:  # of code that agentgym has not seen, which fails again where the model is used
        return
    if relative_gap(one, other) > max_gap(model):
        raise ConfigError(
            f"{_named(model)} is no causal language model, so it cannot act as a policy: its logits depend on later "
            "tokens, as an encoder's do; name a model that writes text, such as smollm2"
        )


def token_ids(model: CausalLM) -> Tensor:
    """Return two rows ``[2, 6]`` of token ids with a common prefix."""
    return torch.tensor(_ROWS, device=model.device) % vocabulary_of(head_of(model))


def relative_gap(made: Tensor, expected: Tensor) -> float:
    """Return the largest difference divided by the largest number; NaN if a value is NaN."""
    return float((made.float() - expected.float()).abs().max()) / largest_logit(expected)


def _named(model: CausalLM) -> str:
    return f"model type {model.config.model_type!r}"


def layer_kinds(sizes: Any) -> set[str]:
    """Return the kinds of a model's layers by its configuration; none if it does not name them.

    GPT-Neo names them otherwise, and its attention has a window that no mask shows.

    Args:
        sizes: the model's transformers configuration.
    """
    return set(getattr(sizes, "layer_types", None) or getattr(sizes, "attention_layers", None) or ())
