"""A sharded model's weights for vLLM servers, gathered one tensor at a time.

Without this, a rank that sends or saves weights would keep a whole model beside its shard, to merge adapters and to
compute the evidence by which servers are checked. For files nothing stays: they are written from the machine's memory.

A rank that sends from GPU to GPU keeps what it gathered, on its GPU and in the servers' dtype. Tensors cannot be sent
as they are gathered: each server takes them at its own pace, or later if it was lost, and to gather them all ranks
would have to wait for it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers.distributed.sharding import parameters_of, whole
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import bit_sum
from agentgym.trainers.engines.vllm.proof import Evidence, scores
from agentgym.trainers.engines.vllm.weights import Tensors
from agentgym.trainers.kinds import TRANSFERS
from agentgym.trainers.models.model import plain_name
from agentgym.trainers.models.precision import dtype_for, sent_as
from agentgym.trainers.models.quantized import kept_state
from agentgym.trainers.types import CausalLM

_ADAPTER = ".lora_"
_ENDS = (".embed_tokens.base_layer.weight", ".lm_head.base_layer.weight")
"""Weights below adapters that peft saves with them (``peft.utils.constants.EMBEDDING_LAYER_NAMES``)."""


class GatheredWeights:
    """Weights of a sharded model for servers, with merged adapters or adapters alone, and the evidence for them.

    All ranks must have one and :meth:`gather` at the same time. Then each rank saves or sends alone: a full disk or a
    slow server holds up no other rank within a collective.

    Args:
        sharded: the trained model.
        target: a model of the same structure on the first rank, whose weights are dropped; None on the others.
        weight_sync: the way to the servers (``engine.weight_sync``).
        is_sender: True on a rank that gives servers their weights.
    """

    def __init__(self, sharded: CausalLM, target: CausalLM | None, weight_sync: str, *, is_sender: bool) -> None:
        self._sharded, self._target = sharded, target
        self._has_adapters, self._is_sent = weight_sync == "lora", weight_sync in TRANSFERS
        self._is_kept = is_sender and not self._has_adapters
        self._state: dict[str, Tensor] = {}
        self._base_sums: dict[str, dict[str, int]] = {}
        self._evidence: Evidence | None = None
        if target is not None:
            drop_weights(target)

    @torch.no_grad()
    def gather(self, token_ids: Sequence[int], dtypes: Collection[str]) -> None:
        """Gather what is saved or sent, and compute the first rank's evidence. All ranks must call this.

        Args:
            token_ids: the tokens that servers must score.
            dtypes: dtypes of the servers' computation.
        """
        if self._has_adapters:
            missing = [dtype for dtype in dtypes if dtype not in self._base_sums]
            if missing:
                self._base_sums |= self._summed(self._parts(with_adapters=False), missing, None)
            self._take_adapters()
            sums = {dtype: self._base_sums[dtype] for dtype in dtypes}
        else:
            sums = self._summed(self._parts(with_adapters=True), dtypes, dtype_for(dtypes))
        logprobs = {dtype: tuple(scores(self._sharded, token_ids, dtype)) for dtype in dtypes}
        parameters_of(self._sharded)  # frees what the forward pass left gathered: embedding and head
        self._evidence = Evidence(sums=sums, logprobs=logprobs)

    def save(self, folder: Path, dtypes: Collection[str]) -> None:
        """Write what was gathered, and free its memory."""
        target: Any = self._target
        if self._has_adapters:
            target.save_pretrained(folder)
            return
        state = dict(self.tensors())
        plain = copy.deepcopy(target).unload() if hasattr(target, "unload") else target
        plain.save_pretrained(folder, state_dict=state)

    def tensors(self) -> Tensors:
        """Return all weights by checkpoint name, in the servers' dtype; the caller has the only reference to them."""
        state, self._state = self._state, {}
        return list(state.items())

    def compute_checksum(self, token_ids: Sequence[int], dtypes: Collection[str]) -> Evidence:
        """Return the evidence for the weights that were gathered."""
        assert self._evidence is not None, "weights must be gathered first"
        return self._evidence

    def _parts(self, *, with_adapters: bool) -> Iterator[tuple[str, Tensor]]:
        """Gather the weights of a model without adapters, by its names; adapters are merged or left out."""
        parameters_of(self._sharded)  # peft merges shards, too, once none is gathered
        state: dict[str, Any] = kept_state(self._sharded)
        layers: dict[str, Any] = dict(self._sharded.named_modules())
        for name, part in state.items():
            if _ADAPTER in name:
                continue
            tensor = whole(part)
            at, is_below, _ = name.partition(".base_layer.weight")
            if with_adapters and is_below:
                (adapter,) = layers[at].active_adapters
                tensor = tensor + whole(layers[at].get_delta_weight(adapter))
            yield plain_name(name), tensor

    def _summed(
        self, parts: Iterator[tuple[str, Tensor]], dtypes: Collection[str], sent: torch.dtype | None
    ) -> dict[str, dict[str, int]]:
        """Return the sums of the bits on the first rank; ranks that give servers all weights keep them."""
        sums: dict[str, dict[str, int]] = {dtype: {} for dtype in dtypes}
        for name, tensor in parts:
            for dtype in dtypes if self._target is not None else ():
                sums[dtype][name] = bit_sum(tensor.to(getattr(torch, dtype)))
            if self._is_kept:
                rounded = sent_as(tensor, sent, copy=self._is_sent)
                self._state[name] = rounded if self._is_sent else rounded.cpu()
        return sums

    def _take_adapters(self) -> None:
        parameters = {} if self._target is None else dict(self._target.named_parameters())
        for name, part in kept_state(self._sharded).items():
            if _ADAPTER in name or name.endswith(_ENDS):  # what peft saves
                gathered = whole(part)
                if name in parameters:
                    parameters[name].data = gathered.cpu()


def drop_weights(model: CausalLM) -> None:
    """Free the memory of a model's weights; its tables, such as those of positions, stay."""
    for parameter in model.parameters():
        parameter.data = torch.empty(0, dtype=parameter.dtype)
