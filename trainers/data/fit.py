"""Checks which layouts of rows work with a model's architecture, and which are fast on a device."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from agentgym.trainers.data.layout import hidden_states, lay_out
from agentgym.trainers.engines.torch.weights import SUPPORTED_MODEL_TYPES
from agentgym.trainers.kinds import LayoutKind
from agentgym.trainers.models.check import layer_kinds, max_gap, relative_gap, token_ids
from agentgym.trainers.models.head import frozen, trunk_of
from agentgym.trainers.models.precision import ATTENTION
from agentgym.trainers.models.vision import vision_of
from agentgym.trainers.types import CausalLM

CALL_OPERATIONS: Final = 1.3e12
"""Operations that a GPU could do while it starts the kernels of one layer, forwards and backwards: 4.5 ms at 300
TFLOP/s. On one H200 a step of few tokens through 24 layers took 0.11 s (``benchmarks/gpu/check-h200.json``)."""
_measured: WeakKeyDictionary[Any, dict[LayoutKind, bool]] = WeakKeyDictionary()


def can_share_prefixes(model: CausalLM) -> bool:
    """Return True if rows can continue from the cached keys and values of their common prefix."""
    return _is_same_in(model, "prefix")


def tokens_of_a_call(model: CausalLM, device: torch.device) -> int:
    """Return the number of tokens that a GPU trains in the time of a forward and backward pass of one; 0 for a CPU.

    A pass of few tokens takes the time to start its kernels. For the layers of SmolLM2-135M these are some 60,000
    tokens, for those of a model with 7 billion weights a thousand.
    """
    if device.type != "cuda":
        return 0
    sizes, trunk = model.config.get_text_config(), trunk_of(model)
    num_weights = sum(p.numel() for p in trunk.parameters()) - sizes.vocab_size * sizes.hidden_size
    num_tokens: float = CALL_OPERATIONS / (6 * max(1, num_weights / sizes.num_hidden_layers))
    return round(num_tokens)


def can_be_packed(model: CausalLM) -> bool:
    """Return True if rows can be packed into one sequence with a mask that separates them; images cannot."""
    return vision_of(model) is None and _is_same_in(model, "packed")


def can_be_split(model: CausalLM) -> bool:
    """Return True if ranks can split rows: tokens see others only in attention that agentgym computes."""
    return model.config._attn_implementation == ATTENTION and can_be_packed(model)


def _is_same_in(model: CausalLM, kind: LayoutKind) -> bool:
    """Return True if a layout gives the same hidden states as separate rows.

    All layers must use full causal attention. For an architecture that agentgym does not know, two rows are compared.
    """
    sizes = model.config.get_text_config()
    kinds = layer_kinds(sizes)
    is_full = kinds == {"full_attention"} if kinds else getattr(sizes, "sliding_window", None) is None
    if not is_full or sizes.model_type in SUPPORTED_MODEL_TYPES:
        return is_full
    known = _measured.setdefault(model, {})
    if kind not in known:
        known[kind] = _compared(model, kind)
    return known[kind]


def _compared(model: CausalLM, kind: LayoutKind) -> bool:
    rows = [tuple(row) for row in token_ids(model).tolist()]
    made = []
    with frozen(model):
        for one in ("rows", kind):
            layout, where = lay_out(rows, one, model.device)
            try:
                states = hidden_states(trunk_of(model), layout)
            except Exception:  # unknown model code may raise anything; the layout of separate rows still works
                return False
            made.append(torch.cat([states[torch.tensor(list(places))] for places in where]))
    return relative_gap(made[1], made[0]) <= max_gap(model)
