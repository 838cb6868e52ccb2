"""The function from hidden states to logits, as in a model's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers.types import CausalLM, Trunk, unwrapped


class ChangedHead:
    """A head whose logits are scaled or soft-capped."""

    def __init__(self, head: Callable[[Tensor], Tensor], num_tokens: int, scale: float, bound: float | None) -> None:
        self.out_features = num_tokens
        self._head, self._scale, self._bound = head, scale, bound

    def __call__(self, states: Tensor) -> Tensor:
        logits = self._head(states) * self._scale
        return logits if self._bound is None else (logits / self._bound).tanh() * self._bound


def head_of(model: CausalLM) -> Callable[[Tensor], Tensor]:
    """Return the function that maps hidden states ``[N, hidden]`` to logits ``[N, V]``.

    Cohere multiplies logits by ``logit_scale``, Granite divides them by ``logits_scaling``, and Gemma 2 caps them with
    ``final_logit_softcapping``.
    """
    sizes = model.config.get_text_config()
    head: Any = model.get_output_embeddings()
    scale = float(getattr(sizes, "logit_scale", None) or 1.0) / float(getattr(sizes, "logits_scaling", None) or 1.0)
    bound = getattr(sizes, "final_logit_softcapping", None)
    if scale == 1.0 and not bound:
        made: Callable[[Tensor], Tensor] = head
        return made
    return ChangedHead(head, int(head.out_features), scale, float(bound) if bound else None)


def trunk_of(model: CausalLM) -> Trunk:
    """Return the network below the head of a transformers causal model, adapters included."""
    whole: Any = unwrapped(model)
    trunk: Trunk = whole.base_model
    return getattr(whole, "model", trunk) if trunk is whole else trunk  # Llama 4's text model names another part


@contextmanager
def frozen(module: CausalLM | torch.nn.Module) -> Iterator[None]:
    """Disable gradients and dropout in this context."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)
