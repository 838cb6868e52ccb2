"""Memory that training frees and asks for again stays with the process."""

from __future__ import annotations

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Parameters of glibc's ``mallopt``, from its ``malloc.h``."""


def keep_freed_memory() -> bool:
    """Have the C library keep large blocks instead of giving each back to the kernel; whether it was told so.

    A training step on a CPU allocates and frees the same tens of megabytes over and over: the logits of a batch, and
    what is computed from them. By default glibc maps each such block anew, and the kernel hands it over zeroed, page
    by page, on first touch; where memory is virtualised that takes longer than the arithmetic
    (``benchmarks/freed_memory``). No number changes; the process keeps the memory of its largest step.

    Example:
        >>> keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
        True
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 64 << 20}
    return all(libc.mallopt(name, value) == 1 for name, value in settings.items())
