"""Tasks in Harbor's directory format (harborframework.com/docs/tasks), without those that need an image build.

::

    my-task/
        task.toml                 see the table in harbor_config.py
        instruction.md            what the agent is told
        environment/Dockerfile    see the table in dockerfile.py
        tests/test.sh             writes /logs/verifier/reward.json or reward.txt
        solution/solve.sh         the oracle

A sandbox has one writable folder, so Harbor's fixed paths become folders in it: the image's WORKDIR is ``app``,
``/tests`` is ``tests``, ``/solution`` is ``solution``, ``/logs`` is ``logs``. The paths are replaced in scripts and
tests before these run. There is no network, so a test that installs packages fails, and :func:`load_harbor_task` warns.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final

from agentgym.canonical import digest
from agentgym.env.tasks import LazyTasks
from agentgym.envs.code.dockerfile import Dockerfile, NeedsBuildError, read_dockerfile, with_image
from agentgym.envs.code.file_tree import Entry, Tree, read_tree
from agentgym.envs.code.harbor_config import HarborConfig, host_values, read_config
from agentgym.errors import CorruptDataError, UsageError
from agentgym.types import Task

DEFAULT_WORKDIR: Final = "/app"

INSTALLS: Final = re.compile(
    r"^(?!\s*#).*(?:\b(?:curl|wget)\b.*https?://|\buvx\b|\b(?:pip3?|uv|apt|apt-get|apk|dnf|yum|npm|conda|cargo|gem)\s+"
    r"(?:-\S+\s+)*(?:pip\s+)?(?:install|update|add|sync)\b|\bgit\s+clone\s+\S*https?://)",
    re.MULTILINE,
)
"""Lines of a script that load something from a network."""


@dataclass(frozen=True, kw_only=True)
class HarborTask:
    """A task directory.

    ``files``, ``tests`` and ``solution`` hold contents by relative path.
    """

    name: str
    instruction: str
    image: str | None
    """Required image; None if the sandbox's default image is enough."""
    workdir: str = DEFAULT_WORKDIR
    files: Tree = field(default_factory=dict)
    """Files that the Dockerfile copies into ``workdir``."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the Dockerfile, see :class:`~agentgym.envs.code.dockerfile.Dockerfile`."""
    shared_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of ``[environment.env]``, for the agent and the tests; values may be templates."""
    tests: Tree = field(default_factory=dict)
    tests_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of ``[verifier.env]``; values may be templates."""
    tests_timeout_s: float = 600.0
    solution: Tree = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of ``[solution.env]``; values may be templates."""
    memory_mb: int | None = None
    left_out: tuple[str, ...] = ()
    """Names in the image's ``workdir`` that are not copied to the workspace, such as a large ``.git``."""

    @property
    def content_hash(self) -> str:
        """Return a digest of the whole task."""
        contents = [
            {path: [entry.data.hex(), entry.mode & 0o111, entry.link] for path, entry in tree.items()}
            for tree in (self.files, self.tests)
        ]
        variables = [dict(env) for env in (self.env, self.shared_env, self.tests_env)]
        return digest([self.instruction, self.image, self.workdir, *variables, *contents])

    def agent_env(self, of_image: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the agent's and the tests' programs, with Harbor's paths.

        Args:
            of_image: variables of the image, which those of the Dockerfile may name.

        Raises:
            UsageError: a template's variable is not set on this machine.
        """
        env = {name: with_image(text, of_image) for name, text in self.env.items()}
        return env | host_values(self.shared_env, f"Harbor task {self.name!r}, [environment.env]")

    def verifier_env(self, of_image: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the tests; see :meth:`agent_env`."""
        return self.agent_env(of_image) | host_values(self.tests_env, f"Harbor task {self.name!r}, [verifier.env]")

    def placed(self, text: str, places: Mapping[str, str]) -> str:
        """Replace Harbor's paths (``/tests``, the WORKDIR ...) in a text by the real ones.

        Example:
            >>> task = HarborTask(name="t", instruction="", image=None)
            >>> task.placed("cd /app && sh /tests/test.sh > /apple", {"/app": "/work/app", "/tests": "/work/tests"})
            'cd /work/app && sh /work/tests/test.sh > /apple'
        """
        names = sorted(places, key=len, reverse=True)
        if not names:
            return text
        pattern = rf"(?<![\w./-])(?:{'|'.join(map(re.escape, names))})(?![\w.-])"
        return re.sub(pattern, lambda found: places[found.group()], text)

    def placed_tree(self, tree: Tree, places: Mapping[str, str]) -> dict[str, Entry]:
        """Replace Harbor's paths in the texts of a tree; see :meth:`placed`."""
        found = {}
        for path, entry in tree.items():
            try:
                found[path] = replace(entry, data=self.placed(entry.data.decode(), places).encode())
            except UnicodeDecodeError:
                found[path] = entry
        return found


def load_harbor_task(folder: str | Path) -> HarborTask:
    """Read one task directory. Warn about scripts that load packages, which fails in a sandbox without a network.

    Raises:
        UsageError: there is no such task, or it needs features that sandboxes lack; the message says what to do.
        CorruptDataError: task.toml or the Dockerfile cannot be read.
    """
    root = Path(folder)
    if not (root / "task.toml").is_file():
        raise UsageError(f"no Harbor task at {str(root)!r}: it has no task.toml")
    config = read_config(root / "task.toml")
    _refuse_unsupported(root)
    dockerfile = _dockerfile(root, config)
    workdir = config.environment.workdir or dockerfile.workdir or DEFAULT_WORKDIR
    task = HarborTask(
        name=config.task.name or root.name,
        instruction=_instruction(root / "instruction.md"),
        image=config.environment.docker_image or dockerfile.image,
        workdir=workdir,
        files=_below(root, workdir, dockerfile.files),
        env=dockerfile.env,
        shared_env=config.environment.env,
        tests=_scripts_in(root / "tests", "test.sh"),
        tests_env=config.verifier.env,
        tests_timeout_s=config.verifier.timeout_sec,
        solution=_scripts_in(root / "solution"),
        solution_env=config.solution.env,
        memory_mb=config.memory_mb,
        left_out=config.metadata.agentgym_left_out,
    )
    _warn_of_installs(root, task)
    return task


class HarborTasks(LazyTasks):
    """The task directories in a folder (or the folder itself) as tasks, all in one split.

    Raises:
        UsageError: the folder contains no task.
    """

    def __init__(self, path: str | Path, split: str, extra_data: Mapping[str, object]) -> None:
        self._split, self._extra_data = split, extra_data
        self._folders = task_folders(path)

    def __len__(self) -> int:
        return len(self._folders)

    def task_at(self, index: int) -> Task:
        folder = self._folders[index]
        task = load_harbor_task(folder)
        data = {**self._extra_data, "name": folder.name, "content_hash": task.content_hash}
        return Task(id=f"{self._split}-{folder.name}", split=self._split, seed=0, data=data)


def task_folders(path: str | Path) -> tuple[Path, ...]:
    """Return the folders with a task.toml in a folder, sorted by name, or the folder itself if it has one."""
    root = Path(path)
    if (root / "task.toml").is_file():
        return (root,)
    found = tuple(sorted(config.parent for config in root.glob("*/task.toml")))
    if not found:
        raise UsageError(f"no Harbor task at {str(path)!r}: expected folders that have a task.toml")
    return found


# ------------------------------------------------------------------------------------------ parts of the directory


def _refuse_unsupported(root: Path) -> None:
    for name in ("environment/docker-compose.yaml", "environment/docker-compose.yml", "trajectory.json", "steps"):
        if (root / name).exists():
            raise UsageError(f"Harbor task {root.name!r} needs {name}, which sandboxes here do not have")
    for file in sorted(root.glob("**/.harborignore")):
        raise UsageError(f"{file}: its rules are not read; remove the files that it names, and then it")


def _instruction(file: Path) -> str:
    if not file.is_file():
        raise UsageError(f"Harbor task {file.parent.name!r} has no {file.name}")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{file} is not UTF-8: {error}") from error


def _dockerfile(root: Path, config: HarborConfig) -> Dockerfile:
    path = root / "environment" / "Dockerfile"
    ready_image = config.environment.docker_image
    if path.is_file():
        try:
            return read_dockerfile(path, is_built=ready_image is not None)
        except NeedsBuildError as error:
            raise _build_needed(root, str(error)) from None
    if ready_image is None:
        raise UsageError(f"Harbor task {root.name!r} has neither environment/Dockerfile nor a docker_image")
    return Dockerfile()


def _build_needed(root: Path, why: str) -> UsageError:
    name = re.sub(r"[^a-z0-9_.-]+", "-", root.name.lower())
    return UsageError(
        f"Harbor task {root.name!r} needs an image of its own (Dockerfile, {why}). Build it where a registry is "
        f"reachable: docker build -t harbor/{name} {root / 'environment'}; then name it in {root / 'task.toml'}: "
        f'[environment] docker_image = "harbor/{name}"'
    )


def _below(root: Path, workdir: str, files: Tree) -> dict[str, Entry]:
    """Return copied files relative to the workdir. Copies to other places would need a build."""
    found = {}
    for path, entry in files.items():
        if not PurePosixPath(path).is_relative_to(workdir):
            raise _build_needed(root, f"COPY to {path}, outside of {workdir}")
        found[str(PurePosixPath(path).relative_to(workdir))] = entry
    return found


def _scripts_in(folder: Path, needed: str = "") -> dict[str, Entry]:
    found = read_tree(folder)
    if needed and needed not in found:
        raise UsageError(f"Harbor task {folder.parent.name!r} has no {folder.name}/{needed}")
    return found


def _warn_of_installs(root: Path, task: HarborTask) -> None:
    for path, entry in task.tests.items():
        text = entry.data.decode(errors="replace") if path.endswith(".sh") else ""
        if found := INSTALLS.search(text):
            number = text.count("\n", 0, found.start()) + 1
            warnings.warn(
                f"{root / 'tests' / path}, line {number} loads from a network, which sandboxes do not have: "
                f"{found[0].strip()[:80]!r}. Install it in the image, and remove the line",
                stacklevel=3,
            )
            return
