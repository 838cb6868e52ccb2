"""Checks that an episode depends on task, seed and actions only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import numpy as np

from agentgym.check.episodes import (
    ON_TURN,
    CheckEpisode,
    aplay,
    first_difference,
    noop,
    play,
    play_on,
    replay,
    scripted,
)
from agentgym.check.outages import retried
from agentgym.check.policies import random_action
from agentgym.check.report import CheckFailed
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.errors import UnknownNameError
from agentgym.registry import find, make
from agentgym.types import Observation

_CHILD_TIMEOUT_S = 300.0
_BEAT_S = 1.0  # seconds of waiting for another process between two signs of life
_ERROR_LINE = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt|Failed)\b")
_NUM_AGAIN = 3  # plays of each way after a difference
_UNSTEADY = (
    "the same actions give another episode now and then: a service that fails, a race or the clock; raise EnvError "
    "where a service fails, so that the episode is played again"
)
_UNKNOWN_IN_CHILD = 17  # an exit status that Python itself never uses


def random_episodes(subject: Subject, num_episodes: int | None = None) -> list[CheckEpisode]:
    """Return episodes of a random policy, one per task, each played once in a new environment."""
    wanted = subject.num_episodes if num_episodes is None else num_episodes
    played = subject.played
    if len(played) < wanted:
        for number, task in enumerate(subject.tasks(wanted)[len(played) :], len(played)):
            with contextlib.closing(subject.factory()) as env:
                began = time.perf_counter()
                played.append(play(env, random_action, task, subject.rng(2, number)))
                subject.played_s.append(time.perf_counter() - began)
    return played[:wanted]


def seed_determinism(subject: Subject) -> str:
    """Check that the same actions give the same episode and state keys in a new and in a used instance."""
    with contextlib.closing(subject.factory()) as used:
        for number, task in enumerate(subject.tasks()):
            for seed in (None, subject.seed + number):
                recorded = play(used, random_action, task, subject.rng(3, number), seed=seed)
                in_fresh = partial(_replayed, subject, recorded, seed)
                in_used = partial(replay, used, recorded.actions, task, seed=seed)
                _same(f"task {task.id} in a fresh instance", recorded, in_fresh(), in_used, in_fresh)
                play(used, noop, task, subject.rng(0), max_turns=2)
                _same(f"task {task.id} in a used instance", recorded, in_used(), in_fresh, in_used)
    return f"{subject.num_episodes} tasks, each with its own and another seed"


def process_determinism(subject: Subject) -> str:
    """Check that processes with different hash seeds play the same random episodes."""
    if subject.reference is None:
        return "not applicable: another process can make an environment only by its name (id, module:Id or file.py:Id)"
    elsewhere = _digests_elsewhere(subject)
    if elsewhere is None:
        return f"not applicable: {subject.reference} is registered in this process alone; name its module or file"
    recorded = random_episodes(subject)
    for number, digests in enumerate(zip([one.digest for one in recorded], *elsewhere, strict=True)):
        if len(set(digests)) > 1:
            is_random = _replayed(subject, recorded[number]).digest != digests[0]
            if is_random or _digests_elsewhere(subject) != elsewhere:
                raise CheckFailed(f"episode {number} differs between processes, and {_UNSTEADY}")
            raise CheckFailed(
                f"episode {number} differs between processes; does something depend on the order of a set, on hash() "
                "or on id()?"
            )
    return f"{len(recorded)} random episodes, the same in 3 processes"


def _digests_elsewhere(subject: Subject) -> list[list[str]] | None:
    """Return the digests of the random episodes in two other processes; None if these cannot find the environment.

    Raises:
        CheckFailed: a process failed; the message has the cause.
    """
    code = (
        "import agentgym.check.determinism as d; "
        f"d.print_digests({subject.reference!r}, {subject.num_episodes}, {subject.seed}, "
        f"{json.dumps(dict(subject.arguments))!r})"
    )
    children = [_start_python(code, hash_seed) for hash_seed in ("1", "2")]
    limit_s = _CHILD_TIMEOUT_S * subject.patience
    deadline = time.monotonic() + limit_s
    try:
        outputs = [_output(child, deadline) for child in children]
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"another process was not done after {limit_s:g} s") from None
    finally:
        for child in children:
            child.kill()  # does nothing to one that has ended
            child.wait()
    if all(child.returncode == _UNKNOWN_IN_CHILD for child in children):
        return None
    for child, (_, errors) in zip(children, outputs, strict=True):
        if child.returncode != 0:
            raise CheckFailed(f"another process failed: {_cause(errors, child.returncode)}")
    return [output.split() for output, _ in outputs]


def _output(child: subprocess.Popen[str], deadline: float) -> tuple[str, str]:
    """Return what a process wrote to its standard output and error.

    Raises:
        subprocess.TimeoutExpired: it was not done before the deadline, a time of ``time.monotonic``.
    """
    while True:
        try:
            return child.communicate(timeout=min(_BEAT_S, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
            ON_TURN.get()(0)


def _cause(errors: str, code: int) -> str:
    """Return the error that ended a process: the last line that begins a message, without the frames above it."""
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    end = f"signal {signal.Signals(-code).name}" if -code in {*signal.Signals} else f"exit code {code}"
    if not lines:
        return f"it ended by {end} without a message"
    named = [at for at, line in enumerate(lines) if _ERROR_LINE.match(line)]
    told = " ".join(line.strip() for line in lines[named[-1] if named else -1 :])[:500]
    return told if named else f"it ended by {end}, and its last line is: {told}"


def print_digests(reference: str, num_episodes: int, seed: int, arguments: str) -> None:
    """Print a digest of each random episode. The other process calls this function.

    Args:
        reference: the environment's id, ``module:Id`` or ``file.py:Id``.
        arguments: the environment's arguments as JSON text.
    """
    output = os.dup(1)
    os.dup2(2, 1)  # what the environment and its processes print is not among the digests
    try:
        find(reference)
    except UnknownNameError:
        sys.exit(_UNKNOWN_IN_CHILD)
    subject = Subject(partial(make, reference, **json.loads(arguments)), reference, num_episodes, seed)
    os.write(output, " ".join(episode.digest for episode in random_episodes(subject)).encode())


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

    def together(number: int) -> CheckEpisode:
        envs = [subject.factory() for _ in alone]
        try:
            return retried(lambda: _interleaved(envs, alone, subject.rng(0)))[number]
        finally:
            for env in envs:
                env.close()

    for number, one in enumerate(alone):
        by_itself, beside = partial(_replayed, subject, one), partial(together, number)
        _same(f"task {one.task.id}, alone and beside other instances", one, beside(), by_itself, beside)
    return f"{len(alone)} interleaved instances play as if alone"


def async_path(subject: Subject) -> str:
    """Check that ``areset`` and ``astep`` return the same as ``reset`` and ``step``."""
    for recorded in random_episodes(subject):

        async def again(recorded: CheckEpisode = recorded) -> CheckEpisode:
            env = subject.factory()
            try:
                return await aplay(env, recorded.actions, recorded.task)
            finally:
                await env.aclose()

        def awaited(again: Callable[[], Coroutine[Any, Any, CheckEpisode]] = again) -> CheckEpisode:
            return asyncio.run(again())

        where = f"task {recorded.task.id} by reset/step and areset/astep"
        _same(where, recorded, awaited(), partial(_replayed, subject, recorded), awaited)
    return f"{subject.num_episodes} episodes, the same by both paths"


class _NoSnapshotsError(Exception):
    """The environment makes no snapshots."""


def snapshots(subject: Subject) -> str:
    """Check that an episode continues after ``restore`` as after ``snapshot``, in the same and in another instance."""
    kinds = set()
    for recorded in random_episodes(subject):
        try:
            kinds.add(retried(partial(_restores, subject, recorded)))
        except _NoSnapshotsError as error:
            return f"not applicable: {error}"
    return f"{subject.num_episodes} episodes continue alike after restore ({' and '.join(sorted(kinds))})"


def _restores(subject: Subject, recorded: CheckEpisode) -> str:
    """Check that an episode continues alike after a restore in its middle; return the kind of its snapshot."""
    at = len(recorded.steps) // 2
    env, other = subject.factory(), subject.factory()
    try:
        said = _advance(env, recorded, at)
        try:
            snapshot = env.snapshot()
        except NotImplementedError as error:
            raise _NoSnapshotsError(str(error)) from error
        rest = recorded.actions[at:]
        expected = play_on(env, scripted(rest), subject.rng(0), said, max_turns=len(rest))

        def restored(target: Env) -> CheckEpisode:
            target.restore(snapshot)
            return play_on(target, scripted(rest), subject.rng(0), said, max_turns=len(rest))

        for what, target in (("the same", env), ("the same", env), ("another", other)):
            where = f"task {recorded.task.id}, turn {at} restored in {what} instance"
            again = partial(restored, target)
            _same(where, expected, again(), partial(_rest_of, subject, recorded, at), again)
        return "replayed" if snapshot.native is None else "native"
    finally:
        env.close()
        other.close()


def _replayed(subject: Subject, recorded: CheckEpisode, seed: int | None = None) -> CheckEpisode:
    """Return the episode that the same actions give in a new instance."""
    with contextlib.closing(subject.factory()) as env:
        return replay(env, recorded.actions, recorded.task, seed=seed)


def _rest_of(subject: Subject, recorded: CheckEpisode, at: int) -> CheckEpisode:
    """Return the turns from ``at`` on that the same actions give in a new instance."""
    with contextlib.closing(subject.factory()) as env:
        said, rest = _advance(env, recorded, at), recorded.actions[at:]
        return play_on(env, scripted(rest), subject.rng(0), said, max_turns=len(rest))


def _advance(env: Env, recorded: CheckEpisode, num_turns: int) -> Observation:
    """Replay the first turns of an episode and return the last observation."""
    said, _ = env.reset(options={"task": recorded.task})
    for action in recorded.actions[:num_turns]:
        said = env.step(action)[0]
    return said


def _interleaved(envs: Sequence[Env], alone: Sequence[CheckEpisode], rng: np.random.Generator) -> list[CheckEpisode]:
    """Replay episodes in their environments, interleaved turn by turn."""
    begun = [env.reset(options={"task": episode.task}) for env, episode in zip(envs, alone, strict=True)]
    parts: list[list[CheckEpisode]] = [[] for _ in alone]
    for turn in range(max(len(episode.steps) for episode in alone)):
        for at, (env, episode) in enumerate(zip(envs, alone, strict=True)):
            if turn < len(episode.steps):
                said = parts[at][-1].observations[-1] if turn else begun[at][0]
                parts[at].append(play_on(env, scripted([episode.actions[turn]]), rng, said, max_turns=1))
    return [
        CheckEpisode(
            task=episode.task,
            first=first,
            first_info=info,
            steps=tuple(step for part in played for step in part.steps),
            last_state_key=played[-1].last_state_key,
        )
        for episode, (first, info), played in zip(alone, begun, parts, strict=True)
    ]


def _same(
    where: str,
    one: CheckEpisode,
    other: CheckEpisode,
    as_one: Callable[[], CheckEpisode],
    as_other: Callable[[], CheckEpisode],
) -> None:
    """Raise :class:`CheckFailed` if two episodes differ.

    Both are then played again. If the two ways always differ alike, the message names the difference. Otherwise it
    says how many of the plays are alike.

    Args:
        where: what was compared.
        one, other: the episodes.
        as_one, as_other: play an episode again in the way of each.
    """
    difference = first_difference(one, other)
    if difference is None:
        return
    ones = [one, *(as_one() for _ in range(_NUM_AGAIN))]
    others = [other, *(as_other() for _ in range(_NUM_AGAIN))]
    if _num_alike(ones) == len(ones) and _num_alike(others) == len(others):
        raise CheckFailed(f"{where}: {difference}")
    alike, total = _num_alike([*ones, *others]), len(ones) + len(others)
    if alike > total // 2:
        raise CheckFailed(f"{where}: {difference}; of {total} plays {alike} are alike, and {_UNSTEADY}")
    raise CheckFailed(
        f"{where}: {difference}; of {total} plays {alike} are alike: a generator without the episode's seed, the "
        "clock, an id or a counter decides"
    )


def _num_alike(episodes: Sequence[CheckEpisode]) -> int:
    """Return the size of the largest set of equal episodes."""
    return max(sum(first_difference(one, other) is None for other in episodes) for one in episodes)


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
