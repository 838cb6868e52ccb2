"""The journal of a run: versions, machine and digests of its policy, one line per start or resumption.

``config.json`` holds the settings of a run; ``journal.jsonl`` holds the software, machine and files that it used. If a
run is resumed with others, the journal contains both lines. An error that ends the run is also a line. So is a
remark about the policy.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from agentgym.canonical import shell_word
from agentgym.errors import AgentGymError, CorruptDataError, error_text
from agentgym.installation import DISTRIBUTION
from agentgym.plugins import found_file
from agentgym.rollout.record import append_json_line, read_json_lines
from agentgym.user_modules import files_beside

JOURNAL = "journal.jsonl"
VERDICT = "verdict.json"
"""Name of the file in a run's folder with the lines of its end and the comparison of its evaluations."""
PACKAGES = (
    "gymnasium", "numpy", "torch", "transformers", "tokenizers", "peft", "trl", "ray", "playwright", "miniwob",
    "minigrid", "reasoning-gym", "textworld", "alfworld", "bfcl-eval", "textarena", "scienceworld",
)  # fmt: skip
"""Packages whose version can change a result."""
_TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json", "agentgym_chat.json")
_OWN_FILE = re.compile(r"(\S.*\.py)(?::[^\s:]+)?")
_PASSWORD = re.compile(r"://[^/\s@]+@")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY")
_LARGE = 2 << 30
_END = 64 << 20
_NOT_A_DIFFERENCE = ("at", "processor", "command", "repository", "threads.", "blas.", "installed.")
"""Facts that differ between runs without changing results."""


def made_with(**facts: object) -> dict[str, Any]:
    """Return the versions and facts that a run uses now.

    Args:
        facts: facts about the run itself, such as digests of its tasks and its policy.

    Example:
        >>> sorted(made_with(tasks="ab12"))[:4]
        ['agentgym', 'at', 'blas', 'command']
    """
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "agentgym": _version(DISTRIBUTION) or "",
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "command": _command(),
        "repository": _repository(),
        "threads": _threads(),
        "blas": _blas(),
        "installed": _installed(),
        **facts,
    }


def note(folder: Path, **facts: object) -> list[str]:
    """Append a line to the journal of a run's folder. Return its differences from the previous line.

    Raises:
        CorruptDataError: the journal cannot be read.
    """
    before = read(folder)
    now = made_with(**facts)
    append_json_line(folder / JOURNAL, now)
    return differences(before[-1], now) if before else []


def note_remark(folder: Path, text: str) -> None:
    """Append a remark about the policy to a run's journal, such as a parameter that its endpoint refuses."""
    append_json_line(folder / JOURNAL, {"at": datetime.now(UTC).isoformat(timespec="seconds"), "remark": text})


def note_stop(folder: Path, error: BaseException, **where: object) -> None:
    """Append the error that ends a run to its journal.

    Args:
        where: the position in the run, such as its phase and the number of finished steps.
    """
    text = str(error) if isinstance(error, AgentGymError) else error_text(error)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    append_json_line(folder / JOURNAL, {"at": at, "stopped": " ".join(text.split()), **where})


def last_stop(folder: Path) -> dict[str, Any]:
    """Return the line of the error that ended a run, with its text under ``stopped``; empty if the run was resumed.

    Raises:
        CorruptDataError: the journal cannot be read.
    """
    lines = _lines(folder)
    return lines[-1] if lines and "stopped" in lines[-1] else {}


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's journal, one per start or resumption; none if there is no journal.

    Raises:
        CorruptDataError: a line is not a JSON object.
    """
    return [line for line in _lines(folder) if not {"stopped", "remark"} & set(line)]


def remarks(folder: Path) -> list[str]:
    """Return the remarks in a run's journal, in order.

    Raises:
        CorruptDataError: a line is not a JSON object.
    """
    return [str(line["remark"]) for line in _lines(folder) if "remark" in line]


def _lines(folder: Path) -> list[dict[str, Any]]:
    lines = read_json_lines(folder / JOURNAL)
    if not all(isinstance(line, dict) for line in lines):
        raise CorruptDataError(f"{folder / JOURNAL} is not a journal: expected one JSON object per line")
    return lines


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the differences between two lines, each as ``name: this, that``.

    Example:
        >>> differences({"at": "1", "packages": {"torch": "2.13.0"}}, {"at": "2", "packages": {"torch": "2.11.0"}})
        ['packages.torch: 2.13.0, 2.11.0']
    """
    # journals of evaluations had no such facts before
    absent = {"own_files"} if ("own_files" in one) != ("own_files" in other) else set()
    a, b = (dict(_flat({k: v for k, v in line.items() if k not in absent})) for line in (one, other))
    names = [name for name in {**a, **b} if not name.startswith(_NOT_A_DIFFERENCE) and a.get(name) != b.get(name)]
    return [f"{name}: {a.get(name, 'none')}, {b.get(name, 'none')}" for name in names]


def model_facts(folder: Path) -> dict[str, str]:
    """Return digests of a model's folder: weights, tokenizer, and rendering settings.

    The first 128 bits of SHA-256 over the names, sizes and contents of the files. For files above 2 GiB, only the first
    and the last 64 MiB are read.
    """
    return {
        "weights": _digest(sorted([*folder.glob("*.safetensors"), *folder.glob("*.gguf"), *folder.glob("*.bin")])),
        "shape": _digest([folder / "config.json"]),
        "tokenizer": _digest([folder / "tokenizer.json"]),
        "template": _digest([folder / name for name in _TEMPLATE_FILES]),
    }


def own_files(config: object) -> dict[str, str]:
    """Return the digests of users' files that a configuration names, and of the files beside them that these import.

    A configuration names a file as ``file.py`` or ``file.py:name``.

    Args:
        config: mappings and lists of values, as ``config.json`` holds them.

    Example:
        >>> own_files({"env": {"id": "guess.py:Guess-v0"}, "credit": {"estimator": "gigpo"}})
        {'guess.py': ''}
    """
    found = own_sources(config)
    return {
        name: file_digest(found[name], Path(name).name) if name in found else ""
        for name in [*named_files(config), *found]
    }


def own_sources(config: object) -> dict[str, Path]:
    """Return where the files of :func:`own_files` are, or their copies, by the paths that a run knows them by."""
    found: dict[str, Path] = {}
    for name in named_files(config):
        source = found_file(Path(name))
        if source.is_file():
            beside = {str(Path(name).parent / file.relative_to(source.parent)): file for file in files_beside(source)}
            found |= {name: source} | beside
    return found


def named_files(config: object) -> list[str]:
    """Return the paths of users' files that a configuration names, without those that they import."""
    return sorted({found[1] for value in _leaves(config) if (found := _OWN_FILE.fullmatch(value))})


def _leaves(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _leaves(inner)


def file_digest(path: Path, named: str = "") -> str:
    """Return the digest of one file, with its own or another name; empty if there is none."""
    return _digest([path], named)


def _digest(paths: Sequence[Path], named: str = "") -> str:
    found = [path for path in paths if path.is_file()]
    total = hashlib.sha256()
    for path in found:
        total.update(f"{named or path.name} {path.stat().st_size}\n".encode() + _content_digest(path))
    return total.hexdigest()[:32] if found else ""


def _content_digest(path: Path) -> bytes:
    """Return SHA-256 of a file, or of both ends of a large one, since reading a large model takes a minute."""
    size = path.stat().st_size
    with open(path, "rb") as source:
        if size <= _LARGE:
            return hashlib.file_digest(source, "sha256").digest()
        head = source.read(_END)
        source.seek(size - _END)
        return hashlib.sha256(head + source.read(_END)).digest()


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _commit() -> str:
    """Return the commit of agentgym's checkout, marked if files were changed; empty if it is not a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or not (root / "pyproject.toml").is_file():
        return ""
    return _commit_of(root)


def _repository() -> str:
    """Return the commit of the repository around the working directory; empty if there is none."""
    here = Path.cwd()
    return _commit_of(here) if any((folder / ".git").exists() for folder in (here, *here.parents)) else ""


def _commit_of(folder: Path) -> str:
    """Return the commit of a checkout, marked if tracked files were changed, or the reason why git does not tell it."""
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        return commit + (" with changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except subprocess.CalledProcessError as error:  # of another user's checkout, or one without a commit
        return f"unknown ({' '.join(error.stderr.split())[:200]})"
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error_text(error)})"


def _command() -> str:
    """Return the command line of this process, without passwords in addresses."""
    program, *words = sys.argv or [""]
    name = "agentgym" if Path(program).name in ("__main__.py", "agentgym") else program
    return _PASSWORD.sub("://", " ".join(map(shell_word, [name, *words])))


def _threads() -> dict[str, object]:
    """Return the numbers of threads that the environment and torch, if it is loaded, allow."""
    found: dict[str, object] = {name: os.environ[name] for name in _THREADS if name in os.environ}
    torch = sys.modules.get("torch")
    return found | ({"torch": torch.get_num_threads()} if torch is not None else {})


def _blas() -> dict[str, str]:
    """Return the libraries of linear algebra behind numpy and, if it is loaded, torch."""
    import numpy as np

    built = np.show_config(mode="dicts")
    of_numpy = built.get("Build Dependencies", {}).get("blas", {})
    found = {"numpy": f"{of_numpy.get('name', '')} {of_numpy.get('version', '')}".strip()}
    torch = sys.modules.get("torch")
    named = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show()) if torch is not None else None
    return found | ({"torch": named[1]} if named else {})


@cache
def _installed() -> dict[str, str]:
    """Return the version of every installed package."""
    read = (one.metadata for one in importlib.metadata.distributions())  # once, since each look parses it
    found = {str(metadata["Name"]): str(metadata["Version"]) for metadata in read}
    return dict(sorted(found.items()))


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _processor() -> str:
    """Return the processor's name, with the number of cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"
