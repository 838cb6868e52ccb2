"""Harbor tasks in agentgym's sandboxes: the initial workspace, its variables, and the grade of the work.

The verifier's sandbox holds ``app`` (the workspace as the agent left it), ``tests`` and ``logs`` side by side. Files of
the agent are therefore neither among the tests nor above them, and the agent cannot leave a reward file. Files that
tests would import or load unintentionally are restored (:mod:`agentgym.envs.code.harbor_shadows`).

A verifier that fails is not a grade (:mod:`agentgym.envs.code.harbor_control`).

In Harbor's format, tests may run the agent's code in their own process, which can then forge report and reward; each
task's tests must guard against that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agentgym.canonical import packaged
from agentgym.envs.code.file_tree import add_tree
from agentgym.envs.code.harbor import HarborTask
from agentgym.envs.code.harbor_control import require_nothing_missing, require_sound, verified
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool
from agentgym.envs.code.workspace import Grade, appended
from agentgym.errors import SandboxError, UsageError
from agentgym.sandbox import Limits, Sandbox, Snapshot
from agentgym.sandboxes.images import DEFAULT_IMAGE

LIMITS: Final = Limits(wall_s=600.0, cpu_s=600, memory_mb=2048, workspace_mb=512, file_mb=256)
"""Limits of a task's sandbox; a task may request more memory."""

_COPY: Final[str] = packaged(__package__, "harbor.toml")["copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborGrade:
    """Result of a verifier."""

    grade: Grade
    reward: float = 0.0
    """Reward from 0 to 1: the value of ``reward``, or the mean of all values if none has this name."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The values as the verifier wrote them; empty if the work made the verifier fail."""


def kind_of(task: HarborTask, kind: SandboxKind) -> SandboxKind:
    """Return the kind of sandbox that a task needs, based on the environment's kind.

    Raises:
        UsageError: the task needs an image, which this kind does not support.
    """
    limits = replace(
        LIMITS,
        memory_mb=max(LIMITS.memory_mb, task.memory_mb or 0),
        wall_s=max(LIMITS.wall_s, task.tests_timeout_s),
        cpu_s=max(LIMITS.cpu_s, int(task.tests_timeout_s)),
    )
    if task.image in (None, DEFAULT_IMAGE):
        return replace(kind, limits=limits)
    if kind.backend not in ("auto", "docker"):
        raise UsageError(
            f"Harbor task {task.name!r} needs the image {task.image}, which a sandbox of the kind {kind.backend!r} "
            "cannot have; use sandbox='docker'"
        )
    return replace(kind, backend="docker", image=str(task.image), limits=limits)


def environment_of(task: HarborTask) -> str:
    """Return the instruction for the agent, with ``.`` for the image's folder, in which its tools work."""
    return task.placed(task.instruction, {task.workdir: "."}).strip()


def lay_out(task: HarborTask, sandbox: Sandbox) -> None:
    """Copy the content of the image's folder and the files of the Dockerfile into a new workspace."""
    if task.image is not None:
        copied = sandbox.exec(
            ["sh", "-c", _COPY, "-", task.workdir, *(f"--exclude=./{name}" for name in task.left_out)]
        )
        if copied.exit_code:
            raise SandboxError(f"the image's {task.workdir} could not be copied: {copied.stderr.strip()[-500:]}")
    if task.files:
        sandbox.restore(appended(sandbox.snapshot(), lambda tar: add_tree(tar, task.files)))


def grade_harbor(pool: SharedPool, task: HarborTask, start: Snapshot, left: Snapshot) -> HarborGrade:
    """Run a task's verifier and return the grade.

    Args:
        pool: where the sandbox to grade in comes from.
        task: the task.
        start: the initial workspace.
        left: the workspace as the agent left it.

    Raises:
        SandboxError: the sandbox failed, not the work.
        EnvError: the verifier is broken, see :mod:`agentgym.envs.code.harbor_control`.
    """
    ran = verified(pool, task, start, left)
    if not ran.is_sound:
        require_sound(pool, task, start, ran)
    if not ran.is_sound or ran.reward < 1:
        require_nothing_missing(pool, task, start, left, ran)
    if ran.is_sound:
        reward = ran.reward
        return HarborGrade(
            grade=Grade(num_tests=1, num_passed=int(reward >= 1)), reward=reward, rewards=ran.rewards or {}
        )
    if ran.rewards is not None and ran.reward <= 0:  # the runner may not have been needed to find the work wrong
        return HarborGrade(grade=Grade(num_tests=1, num_passed=0), rewards=ran.rewards)
    return HarborGrade(grade=Grade(num_tests=1, num_passed=0, is_collected=False, note=ran.problem))
