"""A model's layers compiled by ``torch.compile``, for the trainer's own passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.types import CausalLM

BACKEND = "inductor"
_COMPILED = "_agentgym_compiled"


@contextmanager
def compiled(model: CausalLM) -> Iterator[None]:
    """Compile the layers that are called in this context, for any number and length of rows.

    Each layer is compiled separately. Equal layers share the code, so compile time does not grow with depth. An engine
    that samples from the same model still uses the uncompiled layers.
    """
    layers: list[Any] = list(blocks_of(trunk_of(model)))
    before = [layer._compiled_call_impl for layer in layers]
    for layer in layers:
        if not hasattr(layer, _COMPILED):
            made = torch.compile(layer._call_impl, dynamic=True, backend=BACKEND)
            object.__setattr__(layer, _COMPILED, made)  # a function, not a part of the module
        layer._compiled_call_impl = getattr(layer, _COMPILED)
    try:
        yield
    finally:
        for layer, earlier in zip(layers, before, strict=True):
            layer._compiled_call_impl = earlier
