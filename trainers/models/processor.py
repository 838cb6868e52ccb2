"""Features of this machine's processor, read without torch."""

from __future__ import annotations

import functools
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def leaves_avx512_unused() -> bool:
    """Return True if the processor has AVX-512 and MKL does not use it: on Linux, with any vendor but Intel.

    MKL, by which torch multiplies float32 matrices, takes its AVX2 kernels there. oneDNN, a part of torch, too, takes
    AVX-512.
    """
    fields = _described()
    return fields.get("vendor_id", "GenuineIntel") != "GenuineIntel" and "avx512f" in fields.get("flags", "").split()


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return True if the processor has instructions for products of bfloat16 matrices, as Linux describes it.

    torch computes these products on other processors, too, but there they are slower than float32.
    """
    return bool({"avx512_bf16", "amx_bf16"} & set(_described().get("flags", "").split()))


def _described() -> dict[str, str]:
    """Return Linux's description of the first processor; empty on other systems."""
    text = _CPU_INFO.read_text(encoding="utf-8") if _CPU_INFO.exists() else ""
    lines = text.partition("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
