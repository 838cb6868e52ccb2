from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import ctypes
import torch
from agentgym.trainers.models.allocator import reuse_freed_memory

class MallInfo(ctypes.Structure):  # mallinfo(3)
    _fields_ = [(name, ctypes.c_int) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

library = ctypes.CDLL(None)
library.mallinfo.restype = MallInfo
held = []

def mapped_blocks():
    before = library.mallinfo().hblks
    held.append(torch.empty(20 << 20, dtype=torch.uint8))
    return library.mallinfo().hblks - before

first = mapped_blocks()
reuse_freed_memory()
print(first, mapped_blocks())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_the_memory_of_large_tensors_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"], "blocks that the system gave for a tensor, before and after"
