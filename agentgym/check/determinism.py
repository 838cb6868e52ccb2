"""Checks that an episode depends on task, seed and actions only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np

from agentgym.check.episodes import Episode, aplay, first_difference, noop, play, play_on, replay, scripted
from agentgym.check.policies import random_action
from agentgym.check.report import CheckFailed
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.errors import UnknownNameError
from agentgym.registry import find, make
from agentgym.types import Observation

_CHILD_TIMEOUT_S = 300.0
_ERROR_LINE = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt|Failed)\b")
_UNKNOWN_IN_CHILD = 17  # an exit status that Python itself never uses


def random_episodes(subject: Subject, num_episodes: int | None = None) -> list[Episode]:
    """Return episodes of a random policy, one per task, each played once in a new environment."""
    wanted = subject.num_episodes if num_episodes is None else num_episodes
    played = subject.played
    if len(played) < wanted:
        for number, task in enumerate(subject.tasks(wanted)[len(played) :], len(played)):
            with contextlib.closing(subject.factory()) as env:
                played.append(play(env, random_action, task, subject.rng(2, number)))
    return played[:wanted]


def seed_determinism(subject: Subject) -> str:
    """Check that the same actions give the same episode and state keys in a new and in a used instance."""
    with contextlib.closing(subject.factory()) as used:
        for number, task in enumerate(subject.tasks()):
            for seed in (None, subject.seed + number):
                recorded = play(used, random_action, task, subject.rng(3, number), seed=seed)
                with contextlib.closing(subject.factory()) as fresh:
                    again = replay(fresh, recorded.actions, task, seed=seed)
                _same(f"task {task.id} in a fresh instance", recorded, again)
                play(used, noop, task, subject.rng(0), max_turns=2)
                _same(f"task {task.id} in a used instance", recorded, replay(used, recorded.actions, task, seed=seed))
    return f"{subject.num_episodes} tasks, each with its own and another seed"


def process_determinism(subject: Subject) -> str:
    """Check that processes with different hash seeds play the same random episodes."""
    if subject.reference is None:
        return "not applicable: another process can make an environment only by its name (id, module:Id or file.py:Id)"
    code = (
        "import agentgym.check.determinism as d; "
        f"d.print_digests({subject.reference!r}, {subject.num_episodes}, {subject.seed}, "
        f"{json.dumps(dict(subject.arguments))!r})"
    )
    children = [_start_python(code, hash_seed) for hash_seed in ("1", "2")]
    outputs = [child.communicate(timeout=_CHILD_TIMEOUT_S) for child in children]
    if all(child.returncode == _UNKNOWN_IN_CHILD for child in children):
        return f"not applicable: {subject.reference} is registered in this process alone; name its module or file"
    for child, (_, errors) in zip(children, outputs, strict=True):
        if child.returncode != 0:
            raise CheckFailed(f"another process failed: {_cause(errors)}")
    here = [episode.digest for episode in random_episodes(subject)]
    for number, digests in enumerate(zip(here, *(output.split() for output, _ in outputs), strict=True)):
        if len(set(digests)) > 1:
            raise CheckFailed(
                f"episode {number} differs between processes; does something depend on the order of a set, on hash() "
                "or on id()?"
            )
    return f"{len(here)} random episodes, the same in 3 processes"


def _cause(errors: str) -> str:
    """Return the error that ended a process: the last line that begins a message, without the frames above it."""
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    if not lines:
        return "it ended without a message"
    named = [at for at, line in enumerate(lines) if _ERROR_LINE.match(line)]
    return " ".join(line.strip() for line in lines[named[-1] if named else -1 :])[:500]


def print_digests(reference: str, num_episodes: int, seed: int, arguments: str) -> None:
    """Print a digest of each random episode. The other process calls this function.

    Args:
        reference: the environment's id, ``module:Id`` or ``file.py:Id``.
        arguments: the environment's arguments as JSON text.
    """
    try:
        find(reference)
    except UnknownNameError:
        sys.exit(_UNKNOWN_IN_CHILD)
    subject = Subject(partial(make, reference, **json.loads(arguments)), reference, num_episodes, seed)
    print(*(episode.digest for episode in random_episodes(subject)))


def global_randomness(subject: Subject) -> str:
    """Check that an episode neither draws from nor seeds a global random generator."""
    tasks, states = subject.tasks(), (random.getstate(), np.random.get_state())
    try:
        with contextlib.closing(subject.factory()) as env:
            for number, task in enumerate(tasks):
                # in a state of this check's own: an episode that seeds them leaves them as the one before it did
                seed = int(subject.rng(7, number).integers(2**32))
                random.seed(seed)
                np.random.seed(seed)
                before = _global_generators()
                play(env, random_action, task, subject.rng(4, number))
                for name, state in _global_generators().items():
                    if state != before[name]:
                        raise CheckFailed(f"an episode of task {task.id} used the global generator of {name}")
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return "random and numpy.random are untouched"


def instance_isolation(subject: Subject) -> str:
    """Check that interleaved instances play the same episodes as each would alone."""
    alone = random_episodes(subject, 3)
    envs = [subject.factory() for _ in alone]
    try:
        together = _interleaved(envs, alone, subject.rng(0))
    finally:
        for env in envs:
            env.close()
    for one, other in zip(alone, together, strict=True):
        _same(f"task {one.task.id}, alone and beside other instances", one, other)
    return f"{len(alone)} interleaved instances play as if alone"


def async_path(subject: Subject) -> str:
    """Check that ``areset`` and ``astep`` return the same as ``reset`` and ``step``."""
    for recorded in random_episodes(subject):

        async def again(recorded: Episode = recorded) -> Episode:
            env = subject.factory()
            try:
                return await aplay(env, recorded.actions, recorded.task)
            finally:
                await env.aclose()

        _same(f"task {recorded.task.id} by reset/step and areset/astep", recorded, asyncio.run(again()))
    return f"{subject.num_episodes} episodes, the same by both paths"


def snapshots(subject: Subject) -> str:
    """Check that an episode continues after ``restore`` as after ``snapshot``, in the same and in another instance."""
    kinds = set()
    for recorded in random_episodes(subject):
        at = len(recorded.steps) // 2
        env, other = subject.factory(), subject.factory()
        try:
            said = _advance(env, recorded, at)
            try:
                snapshot = env.snapshot()
            except NotImplementedError as error:
                return f"not applicable: {error}"
            kinds.add("replayed" if snapshot.native is None else "native")
            rest = recorded.actions[at:]
            expected = play_on(env, scripted(rest), subject.rng(0), said, max_turns=len(rest))
            for what, target in (("the same", env), ("the same", env), ("another", other)):
                target.restore(snapshot)
                again = play_on(target, scripted(rest), subject.rng(0), said, max_turns=len(rest))
                _same(f"task {recorded.task.id}, turn {at} restored in {what} instance", expected, again)
        finally:
            env.close()
            other.close()
    return f"{subject.num_episodes} episodes continue alike after restore ({' and '.join(sorted(kinds))})"


def _advance(env: Env, recorded: Episode, num_turns: int) -> Observation:
    """Replay the first turns of an episode and return the last observation."""
    said, _ = env.reset(options={"task": recorded.task})
    for action in recorded.actions[:num_turns]:
        said = env.step(action)[0]
    return said


def _interleaved(envs: Sequence[Env], alone: Sequence[Episode], rng: np.random.Generator) -> list[Episode]:
    """Replay episodes in their environments, interleaved turn by turn."""
    begun = [env.reset(options={"task": episode.task}) for env, episode in zip(envs, alone, strict=True)]
    parts: list[list[Episode]] = [[] for _ in alone]
    for turn in range(max(len(episode.steps) for episode in alone)):
        for at, (env, episode) in enumerate(zip(envs, alone, strict=True)):
            if turn < len(episode.steps):
                said = parts[at][-1].observations[-1] if turn else begun[at][0]
                parts[at].append(play_on(env, scripted([episode.actions[turn]]), rng, said, max_turns=1))
    return [
        Episode(
            task=episode.task,
            first=first,
            first_info=info,
            steps=tuple(step for part in played for step in part.steps),
            last_state_key=played[-1].last_state_key,
        )
        for episode, (first, info), played in zip(alone, begun, parts, strict=True)
    ]


def _same(where: str, one: Episode, other: Episode) -> None:
    difference = first_difference(one, other)
    if difference is not None:
        raise CheckFailed(f"{where}: {difference}")


def _global_generators() -> dict[str, object]:
    return {"random": random.getstate(), "numpy.random": repr(np.random.get_state(legacy=False))}


def _start_python(code: str, hash_seed: str) -> subprocess.Popen[str]:
    paths: Sequence[str] = [path or os.getcwd() for path in sys.path]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
