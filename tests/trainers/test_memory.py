from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from agentgym.trainers.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
import torch
def use():
    torch.full((16 << 20,), 1.0)  # 64 MiB
for _ in range(8):  # aligned blocks find their places after a few
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_block_that_is_asked_for_again_is_the_same_one() -> None:
    faults = {}
    for kind in ("plain", "kept"):
        command = [sys.executable, "-c", PROGRAM, kind]
        faults[kind] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    num_pages = 8 * (64 << 20) // resource.getpagesize()
    assert faults["plain"] > num_pages / 1024, "the kernel hands out nothing anew here: the test shows nothing"
    assert faults["kept"] < faults["plain"] / 4
