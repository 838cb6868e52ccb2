"""The size of a micro-batch, chosen for a run's model and device (``loss.tokens_per_microbatch=auto``).

The choice is a function of the configuration, the model's sizes and the device's total memory. A resumed run and a plan
therefore choose as the run did.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from agentgym.errors import UsageError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.decoder import Sizes, WeightCounts
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.planning.footprint import footprint, longest_row
from agentgym.trainers.planning.servers import awake_bytes

SMALLEST: Final = 1024
LARGEST_ON_CPU: Final = 8192
"""A CPU is busy with fewer tokens, so more would only take memory."""
LARGEST_ON_GPU: Final = 65_536
LARGEST_PACKED: Final = 16_384
"""For ``loss.layout=packed`` on a GPU: FlexAttention's mask is built from tensors of tokens times tokens, which
:func:`~agentgym.trainers.planning.footprint.footprint` does not count. Three of them take 0.8 GB at this size."""
BYTES_ON_CPU: Final = 4 << 30
"""Memory for activations and logits on a CPU, half of a laptop's 8 GiB. SmolLM2-135M has 2,048 tokens in 3.2 GiB, and
its weights, gradients and moments take 2 GiB."""
SHARE_OF_GPU: Final = 0.5
"""Part of a GPU's memory, without what the plan counts, for activations and logits. The other half is for what it does
not count: CUDA, kernels' workspaces, temporary tensors, the allocator's unused blocks, critics and columns."""


def auto_tokens(config: TrainConfig, sizes: Sizes, weights: WeightCounts, num_ranks: int, gpu_bytes: int) -> int:
    """Return the largest power of two of tokens whose activations and logits fit the device, or the longest row.

    Args:
        gpu_bytes: total memory of each rank's GPU; 0 for a CPU.
    """
    tokens = LARGEST_ON_CPU
    if gpu_bytes:
        tokens = LARGEST_PACKED if config.loss.layout == "packed" else LARGEST_ON_GPU
    while tokens > SMALLEST and not _fits(with_tokens(config, tokens), sizes, weights, num_ranks, gpu_bytes):
        tokens //= 2
    return max(tokens, *(longest_row(own) for own in config.by_env.values()))


def planned_tokens(config: TrainConfig, num_ranks: int, gpu_bytes: int) -> int:
    """Return the number of tokens of a run's micro-batches: the configuration's own, or that of :func:`auto_tokens`.

    It is 8,192 for a model whose sizes the planner cannot read.
    """
    if config.loss.tokens_per_microbatch == "auto":
        with suppress(UsageError, LookupError, TypeError, ArithmeticError):  # of an architecture it cannot count
            return auto_tokens(config, *plan_model(config.model), num_ranks, gpu_bytes)
    return config.loss.microbatch_tokens


def with_tokens(config: TrainConfig, tokens: int) -> TrainConfig:
    """Return the configuration with a number of tokens in place of ``auto``."""
    return replace(config, loss=replace(config.loss, tokens_per_microbatch=tokens))


def tokens_note(config: TrainConfig, tokens: int, gpu_bytes: int) -> str:
    """Return a line that names the number chosen for a GPU; empty on a CPU, and if the configuration has a number."""
    if config.loss.tokens_per_microbatch != "auto" or not gpu_bytes:
        return ""
    return f"micro-batches of {tokens:,} tokens, chosen for a GPU of {gpu_bytes / 2**30:.0f} GiB"


def _fits(config: TrainConfig, sizes: Sizes, weights: WeightCounts, num_ranks: int, gpu_bytes: int) -> bool:
    found = footprint(config, sizes, weights, num_ranks, on_gpu=gpu_bytes > 0)
    of_tokens = found.activations + found.logits
    left = gpu_bytes - (found.total - of_tokens) - awake_bytes(config, sizes, weights, num_ranks)
    return of_tokens <= (SHARE_OF_GPU * left if gpu_bytes else BYTES_ON_CPU)
