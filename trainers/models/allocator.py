"""Memory of freed tensors on a CPU."""

from __future__ import annotations

import functools

import torch

_LARGE = 31 << 20
"""Bytes of a block just below 32 MiB, the largest that changes glibc's limits."""


@functools.cache
def reuse_freed_memory() -> None:
    """Make glibc's malloc reuse the memory of freed tensors, in place of giving it back to the system after each step.

    The system clears every page that it hands out again. glibc adapts its limits to the largest mapped block that was
    freed (``M_MMAP_THRESHOLD`` in mallopt(3)), so one large block that is never written to is enough. Other allocators
    are not affected.
    """
    torch.empty(_LARGE, dtype=torch.uint8)
