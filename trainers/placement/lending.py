"""A sharded model's weights, gathered one part at a time for engines that compute in another dtype.

Such an engine keeps weights of its own and reads the trainer's at an update alone. Without this, every rank that plays
would keep a whole copy in the trainer's dtype beside them: 4 bytes a parameter in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module, Parameter

from agentgym.trainers.distributed.sharding import empty_copy_of, whole
from agentgym.trainers.engines.torch.weights import can_read
from agentgym.trainers.models.quantized import is_quantized, kept_state
from agentgym.trainers.types import CausalLM, StateDict


def can_lend(model: CausalLM, max_context_tokens: int) -> bool:
    """Return True if a model can be cut up over ranks, and agentgym's forward pass knows its architecture."""
    return not is_quantized(model) and can_read(model, max_context_tokens)


class GatherOnDemand:
    """Gives an empty model the weights of a sharded one, while an engine reads them.

    All ranks must have one, and must read the same parts in the same order.

    Args:
        sharded: the trained model.
    """

    def __init__(self, sharded: CausalLM) -> None:
        self._sharded = sharded
        self.empty_model = empty_copy_of(sharded)
        """A model of the same structure, without weights."""
        self._parameters: dict[str, Parameter] = dict(self.empty_model.named_parameters())
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._state: StateDict = {}
        self.begin()

    def begin(self) -> None:
        """Lend the weights that the sharded model has now."""
        self._state = kept_state(self._sharded)

    @contextmanager
    def present(self, *modules: Module) -> Iterator[None]:
        """Give modules of the empty model their weights within this context."""
        # parameters that two modules share (tied embeddings) have one name
        names = list(dict.fromkeys(self._names[id(p)] for module in modules for p in module.parameters()))
        try:
            for name in names:
                self._parameters[name].data = whole(self._state[name])
            yield
        finally:
            self._drop(names)

    def give_all(self, *, is_kept: bool) -> None:
        """Give the empty model all weights, in the machine's memory.

        Args:
            is_kept: False on a rank that only takes part in gathering them.
        """
        self.begin()
        for name, parameter in self._parameters.items():
            gathered = whole(self._state[name])
            if is_kept:
                parameter.data = gathered.cpu()

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            parameter = self._parameters[name]
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
