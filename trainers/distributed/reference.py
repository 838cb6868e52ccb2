"""The reference of a KL penalty: a frozen model, or the policy itself with earlier adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

from agentgym.trainers.distributed.sharding import own_part, parameters_of, ranks_of, sharded_copy
from agentgym.trainers.models.model import copy_of_trained, never_trained
from agentgym.trainers.models.quantized import stored_state
from agentgym.trainers.types import CausalLM, StateDict


class EarlierAdapters:
    """A copy of a policy's current adapters, to score with later: a KL reference without a second model.

    :func:`scored` swaps the stored adapters in and the current ones back. Nothing else may read the policy's weights
    in between.
    """

    def __init__(self, policy: CausalLM) -> None:
        self._policy = policy
        self.kept: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in _adapters(policy).items()
        }

    @contextmanager
    def in_place(self) -> Iterator[CausalLM]:
        """Yield the policy with the stored adapters, and restore the current ones afterwards."""
        trained = _adapters(self._policy)
        now = {name: own_part(parameter.detach()).clone() for name, parameter in trained.items()}
        _write(trained, self.kept)
        try:
            yield self._policy
        finally:
            _write(_adapters(self._policy), now)


Reference: TypeAlias = CausalLM | EarlierAdapters


def reference_of(policy: CausalLM, *, has_adapters: bool) -> Reference:
    """Return the current policy as a reference: its adapters if it has any, else a frozen copy, sharded as it is."""
    if has_adapters:
        return EarlierAdapters(policy)
    return never_trained(sharded_copy(policy) if ranks_of(policy).count > 1 else copy_of_trained(policy))


@contextmanager
def scored(reference: Reference) -> Iterator[CausalLM]:
    """Yield the model whose scores are those of the reference."""
    if isinstance(reference, EarlierAdapters):
        with reference.in_place() as model:
            yield model
    else:
        yield reference


def reference_state(reference: Reference, *, has_base: bool) -> StateDict:
    """Return a reference's state for a checkpoint, with or without the weights below its adapters. The tensors are its
    own, not copies.
    """
    if isinstance(reference, EarlierAdapters):
        return dict(reference.kept)
    return stored_state(reference, has_base=has_base)


def _adapters(policy: CausalLM) -> dict[str, torch.nn.Parameter]:
    parameters_of(policy)  # parts that a forward pass left gathered would keep their old values
    return {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}


def _write(parameters: dict[str, torch.nn.Parameter], values: StateDict) -> None:
    for name, parameter in parameters.items():
        # not through autograd: the same numbers are back before a backward pass reads them
        own_part(parameter.data).copy_(own_part(values[name]))
