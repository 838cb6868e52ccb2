"""Harbor tasks in agentgym's sandboxes: the initial workspace, and the verifier in a new sandbox.

The verifier's sandbox holds ``app`` (the workspace as the agent left it), ``tests`` and ``logs`` side by side. Files of
the agent are therefore neither among the tests nor above them, and the agent cannot leave a reward file. Files that
tests would import or load unintentionally are restored (:func:`shadow_rule`). A reward counts only if the tests' runner
(pytest, unittest) has written its report, since work that exits early ends the runner with exit code 0. In Harbor's
format, tests may run the agent's code in their own process, which can then forge report and reward; each task's tests
must guard against that.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from agentgym.canonical import packaged
from agentgym.envs.code.harbor import HarborTask
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool
from agentgym.envs.code.workspace import Grade
from agentgym.errors import SandboxError, SandboxFileError, UsageError
from agentgym.sandbox import ExecResult, Limits, Sandbox, Snapshot
from agentgym.sandboxes.images import DEFAULT_IMAGE

LIMITS: Final = Limits(wall_s=600.0, cpu_s=600, memory_mb=2048, workspace_mb=512, file_mb=256)
"""Limits of a task's sandbox; a task may request more memory."""

_PROGRAMS: Final = packaged(__package__, "harbor.toml")
_COPY: Final[str] = _PROGRAMS["copy"]
_REPORT: Final = "logs/agentgym-junit.xml"
_RAN: Final = {
    "pytest": re.compile(r'<testsuite\b[^>]*\btests="[1-9]'),
    "unittest": re.compile(r"^Ran [1-9]\d* tests? in ", re.MULTILINE),
}
"""Patterns of a runner's own report of at least one test."""
_CALLS: Final = {
    "pytest": re.compile(r"^(?!\s*(?:#|(?:pip|uv|apt)\b)).*(?:\bpytest\s|\bpytest$|pytest\.main\()", re.MULTILINE),
    "unittest": re.compile(r"-m\s+unittest\b"),
}


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
    for path, data in task.files.items():
        sandbox.write(path, data)


def grade_harbor(pool: SharedPool, task: HarborTask, start: Snapshot, left: Snapshot) -> tuple[Grade, float]:
    """Run a task's verifier and return the grade and the reward, from 0 to 1.

    Args:
        pool: where the sandbox to grade in comes from.
        task: the task.
        start: the initial workspace.
        left: the workspace as the agent left it.

    Raises:
        SandboxError: the sandbox failed, not the work.
    """
    with pool.acquire() as sandbox:
        names = importable_in(sandbox)  # computed before the work is copied
        is_as_at_the_start = shadow_rule(task, _names_in(start), _names_in(left), names)
        sandbox.restore(_in_folder(start, left, "app", is_as_at_the_start))
        places = {name: f"{sandbox.workspace}{name}" for name in ("/tests", "/logs", "/solution")}
        places[task.workdir] = f"{sandbox.workspace}/app"
        for path, data in task.tests.items():
            sandbox.write(f"tests/{path}", _placed(task, data, places))
        sandbox.exec(["mkdir", "-p", "app", "logs/verifier", "logs/agent", "logs/artifacts"])
        script = f"{sandbox.workspace}/tests/test.sh"
        env = {name: task.placed(value, places) for name, value in (*task.env.items(), *task.tests_env.items())}
        runner = _runner(task)
        if runner == "pytest":
            options = f"{env.get('PYTEST_ADDOPTS', '')} --junitxml={sandbox.workspace}/{_REPORT}"
            env["PYTEST_ADDOPTS"] = options.strip()
        timeout_s = min(task.tests_timeout_s, sandbox.limits.wall_s)
        result = sandbox.exec(["bash", script], env=env, cwd="app", timeout_s=timeout_s)
        reward = _reward(sandbox)
        if reward and runner and not _RAN[runner].search(_report(sandbox, runner, result)):
            note = f"the tests ended without a report of their runner, {runner}"
            return Grade(num_tests=1, num_passed=0, is_collected=False, note=note), 0.0
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
    """Return the reward that the verifier wrote, or None if it is not a number."""
    for name in ("reward.txt", "reward.json"):
        try:
            text = sandbox.read(f"logs/verifier/{name}").decode()
            value = float(json.loads(text)["reward"] if name.endswith("json") else text)
        except (SandboxFileError, ValueError, TypeError, KeyError):
            continue
        if math.isfinite(value):
            return min(1.0, max(0.0, value))
    return None


def _runner(task: HarborTask) -> str:
    """Return the runner whose report is required: the one that the test scripts call, or an empty text."""
    scripts = [data.decode(errors="replace") for path, data in task.tests.items() if path.endswith(".sh")]
    return next((name for name, call in _CALLS.items() if any(call.search(text) for text in scripts)), "")


def _report(sandbox: Sandbox, runner: str, result: ExecResult) -> str:
    """Return a runner's report: pytest's from a file, unittest's from the output or a log."""
    if runner == "unittest":
        logs = sandbox.exec("find logs -type f -size -1024k -exec cat {} +").stdout
        return f"{result.stdout}\n{result.stderr}\n{logs}"
    try:
        return sandbox.read(_REPORT).decode(errors="replace")
    except SandboxFileError:  # the script's own --junitxml overrides ours
        return sandbox.exec("find logs -name '*.xml' -type f -size -1024k -exec cat {} +").stdout


def _names_in(snapshot: Snapshot) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
        return tar.getnames()


def _in_folder(
    start: Snapshot, left: Snapshot, folder: str, is_as_at_the_start: Callable[[tarfile.TarInfo], bool]
) -> Snapshot:
    """Return a workspace as a folder of another one, with some paths restored from the start."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as made:
        for snapshot, of_the_start in ((left, False), (start, True)):
            with tarfile.open(fileobj=io.BytesIO(snapshot.tar), mode="r:") as tar:
                for entry in tar:
                    if is_as_at_the_start(entry) == of_the_start:
                        data = tar.extractfile(entry) if entry.isreg() else None
                        entry.name = f"{folder}/{PurePosixPath(entry.name)}"
                        if entry.islnk():
                            entry.linkname = f"{folder}/{PurePosixPath(entry.linkname)}"
                        made.addfile(entry, data)
    return Snapshot(buffer.getvalue())


# ----------------- files of a submission that the tests' programs would import instead of the intended modules ``python
# -m pytest`` and the like look for modules in the folder they start in before the standard library. A file
# ``argparse.py`` there, with ``os._exit(0)`` in it, ends the tests before they begin.

UNASKED: Final = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "*.pth", "__pycache__"),
    *("sitecustomize.py", "usercustomize.py", "unittest", "unittest.py"),
)
"""Names, at any depth, that Python, unittest or pytest load from a project automatically."""
_RUNNERS: Final = ("pytest.py", "_pytest", "pluggy")
"""Further such names, which a project has at the start only if it is the runner itself."""

_ROOTS: Final = frozenset({"", "src", "lib"})
_NAMES_A_ROOT: Final = re.compile(r"PYTHONPATH|pythonpath|sys\.path|site\.addsitedir|\b(?:cd|pushd)\s")
_WORDS: Final = re.compile(r"[\w./-]+")
_OF_PROJECTS: Final = frozenset({"test", "tests", "docs", "examples"})
"""Names that libraries also use, but that tests never import from a library."""
_LISTING: Final[str] = _PROGRAMS["listing"]


def importable_in(sandbox: Sandbox) -> frozenset[str]:
    """Return the top-level modules that Python finds outside a sandbox's workspace: standard library and packages."""
    said = sandbox.run_python(_LISTING)
    try:
        found = frozenset(json.loads(said.stdout))
    except ValueError:  # the image's site module prints or fails; the standard library is known anyway
        found = frozenset()
    return (found | sys.stdlib_module_names) - _OF_PROJECTS


def shadow_rule(
    task: HarborTask, start: Iterable[str], left: Iterable[str], importable: frozenset[str]
) -> Callable[[tarfile.TarInfo], bool]:
    """Return a function that is True for entries of the submission that must be restored from the start.

    These are :data:`UNASKED`, links in place of folders that modules are imported from, and new modules that would be
    imported instead of one of ``importable`` and that no test names.

    Args:
        task: the task, whose tests and settings decide from which folders modules are imported.
        start: paths of the initial workspace.
        left: paths of the workspace as the agent left it.
        importable: modules outside the workspace that tests may intend to import.
    """
    tests = [data.decode(errors="replace") for data in task.tests.values()]
    settings = [*tests, *(data.decode(errors="replace") for data in task.files.values())]
    lines = [line for text in settings for line in text.splitlines() if _NAMES_A_ROOT.search(line)]
    roots = _ROOTS | {_inside(word, task.workdir) for line in lines for word in _WORDS.findall(line)}
    above_roots = {str(above) for root in roots for above in (PurePosixPath(root), *PurePosixPath(root).parents)}
    words = [word for text in tests for word in _WORDS.findall(text)]
    said = {part for word in words if "/" in word or word.endswith(".py") for part in PurePosixPath(word).parts}
    given = {str(above) for path in start for above in (PurePosixPath(path), *PurePosixPath(path).parents)}
    packages = {str(PurePosixPath(path).parent) for path in left if PurePosixPath(path).name.startswith("__init__.")}

    def is_shadow(folder: str, part: str) -> bool:
        path = f"{folder}/{part}" if folder else part
        if folder not in roots or part.partition(".")[0] not in importable or part in said or path in given:
            return False
        return part.endswith((".py", ".pyc", ".so")) or path in packages

    def is_as_at_the_start(entry: tarfile.TarInfo) -> bool:
        parts = PurePosixPath(entry.name).parts
        if any(fnmatchcase(part, pattern) for part in parts for pattern in UNASKED):
            return True
        if any(part in _RUNNERS and "/".join(parts[: place + 1]) not in given for place, part in enumerate(parts)):
            return True
        if entry.issym() and str(PurePosixPath(entry.name)) in above_roots:
            return True
        return any(is_shadow("/".join(parts[:number]), part) for number, part in enumerate(parts))

    return is_as_at_the_start


def _inside(word: str, workdir: str) -> str:
    path = PurePosixPath(word)
    path = path.relative_to(workdir) if path.is_relative_to(workdir) else path
    return "" if str(path) == "." else str(path)
