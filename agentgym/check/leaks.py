"""Check that a closed environment leaves no thread, process or file descriptor."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from agentgym.check.episodes import aplay, play
from agentgym.check.policies import random_action
from agentgym.check.report import CheckFailed
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.types import Task

_PROC = Path("/proc")
_PATIENCE_S = 2.0  # seconds within which a thread that was told to stop must end
_NUM_INSTANCES = 4
_NUM_ROUNDS = 3


def leaks(subject: Subject) -> str:
    """Check that closing frees threads, child processes and file descriptors."""
    if not (_PROC / "self" / "fd").is_dir():
        return "not applicable: this system has no /proc to count in"
    task = subject.tasks(1)[0]
    # a resource that is opened once for all instances, for example by an import, is no leak
    _use(subject, subject.factory(), task)
    kept: list[Env] = []  # close() must free resources itself, without garbage collection
    for _ in range(_NUM_ROUNDS):  # shared resources, such as a warm pool, grow only at first; a leak grows each time
        before = _counts()
        kept += [subject.factory() for _ in range(_NUM_INSTANCES)]
        for env in kept[-_NUM_INSTANCES:]:
            _use(subject, env, task)
        if not (leaked := _left(before)):
            return f"{_NUM_INSTANCES} instances leave no thread, child process or file descriptor"
    raise CheckFailed(f"{_NUM_INSTANCES} instances were closed and leave {', '.join(leaked)}")


def _left(before: dict[str, int]) -> list[str]:
    """Return the resources that have grown, after waiting for threads to stop."""
    deadline = time.monotonic() + _PATIENCE_S
    while (leaked := _more(before, _counts())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return leaked


def _use(subject: Subject, env: Env, task: Task) -> None:
    try:
        episode = play(env, random_action, task, subject.rng(11), max_turns=5)
        asyncio.run(aplay(env, episode.actions, task))
    finally:
        env.close()


def _counts() -> dict[str, int]:
    return {
        "threads": len(os.listdir(_PROC / "self" / "task")),
        "child processes": len(_children()),
        "file descriptors": len(os.listdir(_PROC / "self" / "fd")),
    }


def _children() -> list[int]:
    """Return the ids of this process's children."""
    found = []
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            try:
                stat = (_PROC / entry / "stat").read_text()
            except OSError:  # the process has ended meanwhile
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            if parent == os.getpid():
                found.append(int(entry))
    return found


def _more(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return [f"{after[kind] - count} {kind}" for kind, count in before.items() if after[kind] > count]
