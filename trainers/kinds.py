"""Names and bounds that rooms of the trainer share: layouts, precisions, transfers, logits."""

from __future__ import annotations

from typing import Literal

MAX_LOGITS, MAX_LOGITS_GPU = 1 << 25, 1 << 27
"""Largest number of logits that exist at once: 128 MiB in float32, on a GPU 512. There every piece reads the head and
adds to its gradient, which takes longer than the products of a small piece."""
UNPLANNED_TOKENS = 8192
"""Tokens of a micro-batch where ``tokens_per_microbatch`` is ``auto`` and nothing has chosen a number."""
LayoutKind = Literal["rows", "prefix", "packed"]
ImageRoute = Literal["embedded", "vllm", ""]
"""Engine that gets the images of prompts; empty: none does."""
Precision = Literal["auto", "bfloat16", "float32", "float32_ieee"]
TRANSFERS = ("nccl", "ipc")
"""vLLM's own weight transfers from GPU to GPU, see :mod:`agentgym.trainers.engines.vllm.transfer`."""


def max_logits(*, is_gpu: bool) -> int:
    """Return the largest number of logits that exist at once.

    Example:
        >>> [max_logits(is_gpu=is_gpu) for is_gpu in (False, True)]
        [33554432, 134217728]
    """
    return MAX_LOGITS_GPU if is_gpu else MAX_LOGITS


def uses_bfloat16(precision: Precision, *, is_gpu: bool) -> bool:
    """Return True if matrices are multiplied in bfloat16.

    Example:
        >>> [uses_bfloat16("auto", is_gpu=is_gpu) for is_gpu in (False, True)]
        [False, True]
    """
    return precision == "bfloat16" or (precision == "auto" and is_gpu)
