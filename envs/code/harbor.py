"""Tasks in Harbor's directory format (harborframework.com/docs/tasks), without those that need an image build.

::

    my-task/
        task.toml                 time-outs, resources, docker_image
        instruction.md            what the agent is told
        environment/Dockerfile    FROM, WORKDIR, ENV and COPY are understood; what needs a build is refused
        tests/test.sh             writes /logs/verifier/reward.txt, a number, or reward.json
        solution/solve.sh         the oracle

A sandbox has one writable folder, so Harbor's fixed paths become folders in it: the image's WORKDIR is ``app``,
``/tests`` is ``tests``, ``/solution`` is ``solution``, ``/logs`` is ``logs``. The paths are replaced in scripts and
tests before these run. There is no network, so a test that installs packages fails.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from agentgym.canonical import digest
from agentgym.env.tasks import LazyTasks
from agentgym.errors import CorruptDataError, UsageError
from agentgym.types import Task

DEFAULT_WORKDIR: Final = "/app"

_DONE_BY_US: Final = frozenset({"FROM", "WORKDIR", "ENV", "COPY", "ADD", "LABEL", "ARG", "CMD", "ENTRYPOINT", "USER"})
"""Instructions of a Dockerfile that need no build. COPY and ENV are executed here; the last five have no effect."""


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
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files that the Dockerfile copies into ``workdir``."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables from the Dockerfile."""
    tests: Mapping[str, bytes] = field(default_factory=dict)
    tests_env: Mapping[str, str] = field(default_factory=dict)
    tests_timeout_s: float = 600.0
    solution: Mapping[str, bytes] = field(default_factory=dict)
    memory_mb: int | None = None
    left_out: tuple[str, ...] = ()
    """Names in the image's ``workdir`` that are not copied to the workspace, such as a large ``.git``."""

    @property
    def content_hash(self) -> str:
        """Return a digest of the whole task."""
        contents = [{path: data.hex() for path, data in files.items()} for files in (self.files, self.tests)]
        return digest([self.instruction, self.image, self.workdir, dict(self.env), *contents])

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


def load_harbor_task(folder: str | Path) -> HarborTask:
    """Read one task directory.

    Raises:
        UsageError: there is no such task, or it needs features that sandboxes lack; the message says what to do.
        CorruptDataError: task.toml cannot be read.
    """
    root = Path(folder)
    if not (root / "task.toml").is_file():
        raise UsageError(f"no Harbor task at {str(root)!r}: it has no task.toml")
    config = _read_config(root / "task.toml")
    environment, verifier = _table(config, "environment"), _table(config, "verifier")
    _refuse_unsupported(root, config, environment)
    dockerfile = _read_dockerfile(root, environment.get("docker_image"))
    return HarborTask(
        name=str(_table(config, "task").get("name") or root.name),
        instruction=_required(root, "instruction.md").decode(errors="replace"),
        image=environment.get("docker_image") or dockerfile.image,
        workdir=str(environment.get("workdir") or dockerfile.workdir),
        files=dockerfile.files,
        env=dockerfile.env,
        tests=_files_in(root / "tests", "test.sh"),
        tests_env={str(name): str(value) for name, value in _table(verifier, "env").items()},
        tests_timeout_s=float(verifier.get("timeout_sec", 600.0)),
        solution=_files_in(root / "solution"),
        memory_mb=_memory_mb(environment),
        left_out=_left_out(_table(config, "metadata")),
    )


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


# ----------------------------------------------------------------------------------------------------- task.toml


def _read_config(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CorruptDataError(f"{file} cannot be read: {error}") from error


def _table(config: Mapping[str, object], name: str) -> Mapping[str, Any]:
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise CorruptDataError(f"task.toml: {name} is not a table but {found!r}")
    return found


def _refuse_unsupported(root: Path, config: Mapping[str, object], environment: Mapping[str, object]) -> None:
    reasons = {
        "steps in task.toml": bool(config.get("steps")),
        "environment/docker-compose.yaml": (root / "environment" / "docker-compose.yaml").exists(),
        "MCP servers": bool(environment.get("mcp_servers")),
        "GPUs": bool(environment.get("gpus")),
    }
    if wanted := [what for what, is_wanted in reasons.items() if is_wanted]:
        raise UsageError(f"Harbor task {root.name!r} needs {', '.join(wanted)}, which sandboxes here do not have")


def _left_out(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    names = metadata.get("agentgym_left_out", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and "/" not in name for name in names):
        raise CorruptDataError(f"task.toml: agentgym_left_out is a list of names, got {names!r}")
    return tuple(names)


def _memory_mb(environment: Mapping[str, Any]) -> int | None:
    if "memory_mb" in environment:
        return int(environment["memory_mb"])
    if "memory" not in environment:  # the form before schema 1.1: "512M", "4G"
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([MG])i?B?", str(environment["memory"]).strip(), re.IGNORECASE)
    if found is None:
        raise CorruptDataError(f"task.toml: memory is a number with M or G, got {environment['memory']!r}")
    return int(float(found[1]) * (1024 if found[2].upper() == "G" else 1))


# ---------------------------------------------------------------------------------------------------- Dockerfile


@dataclass(kw_only=True)
class _Dockerfile:
    image: str | None = None
    workdir: str = DEFAULT_WORKDIR
    files: dict[str, bytes] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def _read_dockerfile(root: Path, ready_image: str | None) -> _Dockerfile:
    """Read the Dockerfile; if its image exists, only the folder and the variables."""
    path = root / "environment" / "Dockerfile"
    found = _Dockerfile()
    if not path.is_file():
        if ready_image is None:
            raise UsageError(f"Harbor task {root.name!r} has neither environment/Dockerfile nor a docker_image")
        return found
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    for line in (line.strip() for line in text.splitlines()):
        word, _, rest = line.partition(" ")
        instruction = word.upper()
        if not line or line.startswith("#"):
            continue
        if instruction == "FROM":
            found.image = rest.split()[0]
        elif instruction == "WORKDIR":
            found.workdir = str(PurePosixPath(found.workdir) / rest.strip())
        elif instruction == "ENV":
            found.env |= _variables(rest)
        elif ready_image is None and instruction in ("COPY", "ADD"):
            found.files |= _copied(root, rest, found.workdir)
        elif ready_image is None and instruction not in _DONE_BY_US:
            raise _build_needed(root, f"{instruction} in its Dockerfile")
    return found


def _build_needed(root: Path, why: str) -> UsageError:
    name = re.sub(r"[^a-z0-9_.-]+", "-", root.name.lower())
    return UsageError(
        f"Harbor task {root.name!r} needs an image of its own ({why}). Build it where a registry is reachable: "
        f"docker build -t harbor/{name} {root / 'environment'}; then name it in {root / 'task.toml'}: "
        f'[environment] docker_image = "harbor/{name}"'
    )


def _variables(text: str) -> dict[str, str]:
    words = shlex.split(text)
    if words and "=" not in words[0]:  # the old form: ENV name value with spaces
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _copied(root: Path, text: str, workdir: str) -> dict[str, bytes]:
    """Return the files that a COPY adds to the workdir. Copies to other places would need a build."""
    context = (root / "environment").resolve()
    *sources, target = shlex.split(text)
    if not sources or any(word.startswith("--") or "*" in word or "://" in word for word in sources):
        raise _build_needed(root, f"COPY {text}")
    place = PurePosixPath(workdir) / target
    if not place.is_relative_to(workdir):
        raise _build_needed(root, f"COPY to {target}")
    inside = place.relative_to(workdir)
    is_folder = target.endswith(("/", ".")) or len(sources) > 1
    found: dict[str, bytes] = {}
    for source in sources:
        path = (context / source.lstrip("/")).resolve()
        if not path.is_relative_to(context) or not path.exists():
            raise CorruptDataError(f"{root / 'environment' / 'Dockerfile'}: COPY {source}: there is no such file")
        if path.is_dir():
            found |= {str(inside / name): data for name, data in _files_in(path).items() if name != "Dockerfile"}
        else:
            found[str(inside / path.name if is_folder else inside)] = path.read_bytes()
    return found


def _files_in(folder: Path, needed: str = "") -> dict[str, bytes]:
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    if needed and needed not in found:
        raise UsageError(f"Harbor task {folder.parent.name!r} has no {folder.name}/{needed}")
    return found


def _required(root: Path, name: str) -> bytes:
    if not (root / name).is_file():
        raise UsageError(f"Harbor task {root.name!r} has no {name}")
    return (root / name).read_bytes()
