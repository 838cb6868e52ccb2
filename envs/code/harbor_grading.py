"""A Harbor task in our sandboxes: what the workspace is at the start, and the verifier in a fresh one.

The verifier's sandbox holds ``app`` (the workspace as the agent left it), ``tests`` and ``logs`` side by side. So
nothing that the agent wrote lies among the tests or above them, and no reward file of its making is there. Harbor's
format lets tests run what the agent wrote in a process of their own, which can then write the reward: how well a task
is sealed, is up to its tests. Files that tools load unasked are put back as they were (:data:`UNASKED`).
"""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from agentgym.envs.code.harbor import HarborTask
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool
from agentgym.envs.code.workspace import Grade
from agentgym.errors import SandboxFileError, UsageError
from agentgym.sandbox import Limits, Sandbox, Snapshot
from agentgym.sandboxes.images import DEFAULT_IMAGE

LIMITS: Final = Limits(wall_s=600.0, cpu_s=600, memory_mb=2048, workspace_mb=512, file_mb=256)
"""What a task's sandbox may use; more memory where the task asks for more."""

UNASKED: Final = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "*.pth", "__pycache__"),
    *("sitecustomize.py", "usercustomize.py", "pytest.py", "_pytest", "unittest", "unittest.py", "pluggy"),
)
"""Names, at any depth, of what Python, unittest or pytest load from a project without being told to."""


def kind_of(task: HarborTask, kind: SandboxKind) -> SandboxKind:
    """The kind of sandbox a task needs, of an environment's kind.

    Raises:
        UsageError: the task needs an image, and this kind has none.
    """
    limits = replace(LIMITS, memory_mb=max(LIMITS.memory_mb, task.memory_mb or 0))
    if task.image in (None, DEFAULT_IMAGE):
        return replace(kind, limits=limits)
    if kind.backend not in ("auto", "docker"):
        raise UsageError(
            f"Harbor task {task.name!r} needs the image {task.image}, which a sandbox of the kind {kind.backend!r} "
            "cannot have; use sandbox='docker'"
        )
    return replace(kind, backend="docker", image=str(task.image), limits=limits)


def environment_of(task: HarborTask) -> str:
    """What the agent is told: the instruction, with the image's folder called ``.``, where its tools work."""
    return task.placed(task.instruction, {task.workdir: "."}).strip()


def lay_out(task: HarborTask, sandbox: Sandbox) -> None:
    """Put into a new workspace what the image has in its folder and what the Dockerfile copies there."""
    if task.image is not None:
        sandbox.exec(["sh", "-c", '[ ! -d "$1" ] || [ "$1" -ef . ] || cp -a "$1/." .', "-", task.workdir])
    for path, data in task.files.items():
        sandbox.write(path, data)


def grade_harbor(pool: SharedPool, task: HarborTask, start: Snapshot, left: Snapshot) -> tuple[Grade, float]:
    """Run a task's verifier; gives the grade and the reward, from 0 to 1.

    Args:
        pool: where the sandbox to grade in comes from.
        task: the task.
        start: the workspace as it was given to the agent.
        left: the workspace as the agent left it.

    Raises:
        SandboxError: the sandbox failed, not the work.
    """
    with pool.acquire() as sandbox:
        sandbox.restore(_in_folder(start, left, "app"))
        places = {name: f"{sandbox.workspace}{name}" for name in ("/tests", "/logs", "/solution")}
        places[task.workdir] = f"{sandbox.workspace}/app"
        for path, data in task.tests.items():
            sandbox.write(f"tests/{path}", _placed(task, data, places))
        sandbox.exec(["mkdir", "-p", "app", "logs/verifier", "logs/agent", "logs/artifacts"])
        script = f"{sandbox.workspace}/tests/test.sh"
        env = {name: task.placed(value, places) for name, value in (*task.env.items(), *task.tests_env.items())}
        timeout_s = min(task.tests_timeout_s, sandbox.limits.wall_s)
        result = sandbox.exec(["bash", script], env=env, cwd="app", timeout_s=timeout_s)
        reward = _reward(sandbox)
    if reward is None:
        note = "the tests ran out of time" if result.timed_out else "the tests wrote no reward"
        return Grade(num_tests=1, num_passed=0, is_collected=False, note=note), 0.0
    return Grade(num_tests=1, num_passed=int(reward >= 1)), reward


def _placed(task: HarborTask, data: bytes, places: Mapping[str, str]) -> bytes:
    try:
        return task.placed(data.decode(), places).encode()
    except UnicodeDecodeError:
        return data


def _reward(sandbox: Sandbox) -> float | None:
    """What the verifier wrote; None if there is no number."""
    for name in ("reward.txt", "reward.json"):
        try:
            text = sandbox.read(f"logs/verifier/{name}").decode()
            value = float(json.loads(text)["reward"] if name.endswith("json") else text)
        except (SandboxFileError, ValueError, TypeError, KeyError):
            continue
        if math.isfinite(value):
            return min(1.0, max(0.0, value))
    return None


def _in_folder(start: Snapshot, left: Snapshot, folder: str) -> Snapshot:
    """A workspace as a folder of another, with :data:`UNASKED` as it was at the start."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as made:
        for snapshot, takes_unasked in ((left, False), (start, True)):
            with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
                for entry in tar:
                    if _is_unasked(entry.name) == takes_unasked:
                        data = tar.extractfile(entry) if entry.isreg() else None
                        entry.name = f"{folder}/{PurePosixPath(entry.name)}"
                        if entry.islnk():
                            entry.linkname = f"{folder}/{PurePosixPath(entry.linkname)}"
                        made.addfile(entry, data)
    return Snapshot(buffer.getvalue())


def _is_unasked(path: str) -> bool:
    return any(fnmatchcase(part, pattern) for part in PurePosixPath(path).parts for pattern in UNASKED)
