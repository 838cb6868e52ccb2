"""Proofs that a server must give before it serves: it has the trainer's weights, bit for bit, and uses them.

The trainer rounds each tensor to the server's dtype and sums a hash of every number's bits (:func:`bit_sum`). The
server's workers do the same with the parameters they compute with. The order of the numbers does not matter, so the sum
of a fused matrix is the sum of its parts, and the sums of shards add up to that of the whole. Then the server scores
some tokens, which the trainer has scored with equally rounded weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.trainers.engines.vllm.client import VllmClient
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import MODULUS, bit_sum
from agentgym.trainers.engines.vllm.wire import ServerFaultError
from agentgym.trainers.models.head import frozen
from agentgym.trainers.models.vision import vision_of
from agentgym.trainers.types import CausalLM
from agentgym.types import JsonObject

DTYPES = ("float32", "bfloat16", "float16")
"""Dtypes in which servers compute."""
_NUM_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence that servers must give for a version of the weights, by dtype."""

    sums: Mapping[str, Mapping[str, int]]
    """:func:`bit_sum` of every tensor, by checkpoint name."""
    logprobs: Mapping[str, tuple[float, ...]]
    """Log-probabilities (temperature 1) of all but the first of the version's tokens."""


WeightChecksum = Callable[[Sequence[int], Collection[str]], Evidence]
"""Type of a function that computes the evidence of the trainer's current weights, for some tokens and dtypes."""


def weight_sums(tensors: Iterable[tuple[str, Tensor]], dtypes: Collection[str]) -> dict[str, dict[str, int]]:
    """Return :func:`bit_sum` of every tensor in every dtype."""
    sums: dict[str, dict[str, int]] = {dtype: {} for dtype in dtypes}
    for name, tensor in tensors:
        for dtype in dtypes:
            sums[dtype][name] = bit_sum(tensor.detach().to(getattr(torch, dtype)))
    return sums


async def prove(client: VllmClient, evidence: Evidence, timeout_s: float) -> tuple[str, int]:
    """Compare a server's loaded parameters with the trainer's.

    Returns:
        the server's dtype, and the number of parameters that could not be read, because vLLM packs matrices on CPUs.

    Raises:
        ServerFaultError: the parameters differ, or there is no evidence for the server's dtype.
    """
    workers = await client.rpc("agentgym_sums", {}, timeout_s)
    dtype = str(workers[0].get("dtype"))
    expected = evidence.sums.get(dtype)
    if expected is None:
        raise ServerFaultError(
            f"it computes in {dtype}, and these weights were made ready for {', '.join(evidence.sums)}; it may serve "
            "with the next ones"
        )
    found = _by_name(workers)
    hidden = [name for name, (_, values) in found.items() if None in values]
    wrong = [
        name for name, (parts, values) in found.items() if None not in values and not _agrees(expected, parts, values)
    ]
    if wrong:
        named = ", ".join(wrong[:_NUM_NAMED])
        raise ServerFaultError(
            f"{len(wrong)} of its {len(found)} parameters are not the trainer's, by the sum of their bits in {dtype}: "
            f"{named}{', ...' if len(wrong) > _NUM_NAMED else ''}"
        )
    return dtype, len(hidden)


def _by_name(workers: Sequence[JsonObject]) -> dict[str, tuple[list[str], list[int | None]]]:
    """Return for every parameter its checkpoint names, and the sum of each worker that has it."""
    found: dict[str, tuple[list[str], list[int | None]]] = {}
    for worker in workers:
        parameters: object = worker.get("parameters")
        if not isinstance(parameters, Mapping):
            raise ServerFaultError("a worker said nothing of its parameters")
        for name, (parts, value) in parameters.items():
            found.setdefault(name, (list(parts), []))[1].append(None if value is None else int(value, 16))
    return found


def _agrees(expected: Mapping[str, int], parts: Sequence[str], values: Sequence[int | None]) -> bool:
    """Return True if the workers' sums fit a parameter: each has all of it, or shards; key heads may be repeated."""
    if any(part not in expected for part in parts):
        return False
    sums = [expected[part] for part in parts]
    held = [value for value in values if value is not None]
    if all(value == sum(sums) % MODULUS for value in held):
        return True
    whole = sum(held) % MODULUS
    # with more workers than key heads each key head is on several of them
    copies = [n for n in range(1, len(held) + 1) if len(held) % n == 0]
    return any(whole == (sums[0] + n * sum(sums[1:])) % MODULUS for n in (copies if len(parts) > 2 else [1]))


def scores(model: CausalLM, token_ids: Sequence[int], dtype: str) -> list[float]:
    """Return log-probabilities (temperature 1) of all given tokens but the first, from a plain forward pass.

    All ranks must call this for a sharded model. Placeholders of images keep their probability, as on a server, which
    leaves them out of what it samples alone.
    """
    vision = vision_of(model)
    raw = nullcontext() if vision is None else vision.raw()
    with frozen(model), rounded_to(model, getattr(torch, dtype)), raw:
        ids = torch.tensor([list(token_ids)], device=model.device)
        logprobs = model(ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        chosen: list[float] = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return chosen


@contextmanager
def rounded_to(model: CausalLM, dtype: torch.dtype) -> Iterator[None]:
    """Compute in another dtype within this context, rounding one module's weights at a time."""
    kept: dict[int, list[tuple[torch.nn.Parameter, Tensor]]] = {}

    def enter(module: torch.nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
        kept[id(module)] = [(p, p.data) for p in module.parameters(recurse=False) if p.is_floating_point()]
        for parameter, data in kept[id(module)]:
            parameter.data = data.to(dtype)
        # peft casts what goes into an adapter to the dtype that its weights have outside of it
        return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)

    def leave(module: torch.nn.Module, inputs: object, output: object) -> None:
        for parameter, data in kept.pop(id(module)):
            parameter.data = data

    with_weights = [module for module in model.modules() if list(module.parameters(recurse=False))]
    hooks = [module.register_forward_pre_hook(enter) for module in with_weights]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in with_weights]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
