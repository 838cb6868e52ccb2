"""The vocabulary's head in pieces, compared with whole logits, and with Liger's fused head where it is installed."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from engine import SHAPES, synchronize
from rows import Row, skipped
from torch import Tensor

from agentgym.trainers.models.head_logprobs import head_logprobs

Loss = Callable[[torch.nn.Linear, Tensor, Tensor], Tensor]


def in_pieces(head: torch.nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss by the trainer's head."""
    return -head_logprobs(head, states, targets, 1.0)[0].mean()


def of_whole_logits(head: torch.nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss with all logits in memory."""
    return F.cross_entropy(head(states).float(), targets)


def by_liger(head: torch.nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss by Liger's kernel, which computes the gradient in the forward pass."""
    from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction

    loss: Tensor = LigerFusedLinearCrossEntropyFunction.apply(states, head.weight, targets)[0]
    return loss


def measured(loss: Loss, head: torch.nn.Linear, states: Tensor, targets: Tensor) -> tuple[Tensor, str]:
    """Return the gradient of the states, and milliseconds and GiB of both passes."""
    device = states.device
    seconds = []
    for _ in range(4):
        states.grad = head.weight.grad = None
        synchronize(device)
        held = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            value = loss(head, states, targets)
        value.backward()  # type: ignore[no-untyped-call]
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    peak = f", {(torch.cuda.max_memory_allocated() - held) / 2**30:.1f} GiB" if device.type == "cuda" else ""
    assert states.grad is not None
    return states.grad.clone(), f"{statistics.median(seconds[1:]) * 1e3:.1f} ms{peak}"


def head(device: torch.device, shape: str) -> Iterator[Row]:
    """Compare the gradient of the trainer's head with that of whole logits; the notes say what each costs."""
    is_gpu = device.type == "cuda"
    shape, num_tokens = ("1.5B", 4096) if is_gpu else (shape, 64)
    hidden, vocab = SHAPES[shape]["hidden_size"], SHAPES[shape]["vocab_size"]
    torch.manual_seed(0)
    layer = torch.nn.Linear(hidden, vocab, bias=False, device=device)
    states = torch.randn(num_tokens, hidden, device=device, requires_grad=True)
    measure = partial(measured, head=layer, states=states, targets=torch.randint(vocab, (num_tokens,), device=device))
    want, of_whole = measure(of_whole_logits)
    found, of_pieces = measure(in_pieces)
    name = f"head, {num_tokens:,} tokens: gradient"
    yield Row(name, gap(found, want), 1e-3, f"in pieces {of_pieces}; whole logits {of_whole}")
    if not is_gpu or importlib.util.find_spec("liger_kernel") is None:
        yield skipped(f"{name} by Liger", "needs a GPU and liger-kernel")
        return
    by_kernel, of_liger = measure(by_liger)
    yield Row(f"{name} by Liger", gap(by_kernel, want), 1e-3, of_liger)


def gap(one: Tensor, other: Tensor) -> float:
    """One minus the cosine of two gradients."""
    return 1 - F.cosine_similarity(one.flatten(), other.flatten(), dim=0).item()
