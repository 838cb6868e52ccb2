"""Checks which layouts of rows work with a model's architecture."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from agentgym.trainers.data.layout import hidden_states, lay_out
from agentgym.trainers.engines.torch.weights import SUPPORTED_MODEL_TYPES
from agentgym.trainers.losses.config import LayoutKind
from agentgym.trainers.models.check import max_gap, relative_gap, token_ids
from agentgym.trainers.models.precision import ATTENTION
from agentgym.trainers.scoring.hidden import frozen, trunk_of
from agentgym.trainers.types import CausalLM

_measured: WeakKeyDictionary[Any, dict[LayoutKind, bool]] = WeakKeyDictionary()


def can_share_prefixes(model: CausalLM) -> bool:
    """Return True if rows can continue from the cached keys and values of their common prefix."""
    return _is_same_in(model, "prefix")


def can_be_packed(model: CausalLM) -> bool:
    """Return True if rows can be packed into one sequence with a mask that separates them."""
    return _is_same_in(model, "packed")


def can_be_split(model: CausalLM) -> bool:
    """Return True if ranks can split rows: tokens see others only in attention that agentgym computes."""
    return model.config._attn_implementation == ATTENTION and can_be_packed(model)


def _is_same_in(model: CausalLM, kind: LayoutKind) -> bool:
    """Return True if a layout gives the same hidden states as separate rows.

    All layers must use full causal attention. For an architecture that agentgym does not know, two rows are compared.
    """
    sizes = model.config.get_text_config()
    layers = getattr(sizes, "layer_types", None)
    is_full = getattr(sizes, "sliding_window", None) is None if layers is None else set(layers) == {"full_attention"}
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
