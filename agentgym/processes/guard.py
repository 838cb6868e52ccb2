"""A small process that runs a command, and kills it when its owner ends; of a browser also pages with too much memory.

Run as ``guard.py OWNER_PID OWNER_START_TICKS PAGE_MB COMMAND...`` by the standard library alone. However the owner
ends, SIGKILL included, everything below the guard is killed, and a browser's profile removed; if the guard itself is
killed, the kernel kills the command, and a browser's children end with it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_LOOK_S = 0.25
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PROFILE = "playwright_chromiumdev_profile-"
_PROC = Path("/proc")


def main(arguments: list[str]) -> int:
    """Run the command until it or its owner ends."""
    owner, ticks, page_mb = int(arguments[0]), arguments[1], int(arguments[2])
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner handles Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Chromium talks to Playwright over the file descriptors 3 and 4
    process = subprocess.Popen(
        arguments[3:],
        close_fds=False,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509  (there are no threads here)
    )
    for pipe in (3, 4):  # or the browser's end would not close them
        with suppress(OSError):
            os.close(pipe)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_S)
            if start_ticks(owner) != ticks:
                return 1
            kill_large_pages(page_mb)
    finally:
        kill_below()
        remove_profile(arguments[3:])


def remove_profile(command: list[str]) -> None:
    """Remove the folder that Playwright made for this browser, as Playwright does after an orderly end."""
    for word in command:
        folder = Path(word.removeprefix("--user-data-dir="))
        if word != str(folder) and folder.name.startswith(_PROFILE):
            shutil.rmtree(folder, ignore_errors=True)


def kill_large_pages(page_mb: int) -> None:
    """Kill every page's process that has more private memory than ``page_mb`` MB."""
    for pid in below(os.getpid()):
        with suppress(OSError, IndexError):
            if own_kib(pid) > page_mb << 10 and b"--type=renderer" in (_PROC / str(pid) / "cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def kill_below() -> None:
    """Kill all descendants. Orphans become children of the guard, so a second pass finds what the first one missed."""
    deadline = time.monotonic() + 5.0
    while (pids := below(os.getpid())) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def below(pid: int) -> list[int]:
    """Return the ids of all descendants of a process, without zombies."""
    found, new = list[int](), [pid]
    while new:
        children = []
        for parent in new:
            tasks = f"{_PROC}/{parent}/task"
            with suppress(OSError):  # four times a second for some ninety threads, so without paths and decoding
                for task in os.listdir(tasks):
                    with open(f"{tasks}/{task}/children", "rb", buffering=0) as file:
                        children += [int(child) for child in file.read().split()]
        new = children
        found += [child for child in children if start_ticks(child)]
    return found


def start_ticks(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; empty if it has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def own_kib(pid: int) -> int:
    """Return a process's private memory in KiB: neither shared nor backed by a file."""
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
