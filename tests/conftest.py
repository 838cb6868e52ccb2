"""What holds for all tests: hypothesis draws the same examples every time, and no test looks at a clock."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from testkit import TESTKIT

from agentgym import plugins
from agentgym.installation import install_command
from agentgym.plugins import COPIES_VARIABLE, Registry

ROOT = Path(__file__).parents[1]

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# a suite that a script starts in the background ignores Ctrl-C, and so would every command that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # nothing that collection makes is garbage, and looking for it takes a quarter of its time


def pytest_collection_finish() -> None:
    """Collect garbage again, but not among modules and test items."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with conformance kits, which play an environment for a minute or so, so that none is alone at the end."""
    items.sort(key=lambda item: item.name != "test_it_conforms")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count what was skipped, by what this machine lacks."""
    skipped = Counter(want_of(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    if skipped:
        wants = "; ".join(f"{count} {want}" for want, count in skipped.most_common())
        terminalreporter.write_line(f"skipped {skipped.total()} for want of what follows: {wants}")


def want_of(reason: str) -> str:
    """Return what a skipped test lacks, in the words of its reason."""
    reason = reason.removeprefix("Skipped: ").strip()
    if missing := re.match(r"could not import '([\w.]+)'", reason):
        command = install_command(EXTRAS.get(missing[1].partition(".")[0], "all-cpu"))
        return f"the package {missing[1]} ({command})"
    return reason.removeprefix("needs ")


EXTRAS = {"faiss": "dense", "math_verify": "math", "miniwob": "miniwob", "trl": "trl", "ray": "ray"}
"""Extras of packages that tests import without a reason of their own."""


@pytest.fixture(autouse=True)
def components_of_a_test_end_with_it() -> Iterator[None]:
    """Forget the components that a test registers, which others would list, try and clash with.

    A file that registered some runs again when the next test names it.
    """
    before = [(registry, set(registry._components)) for registry in Registry._every]
    yield
    for registry, names in before:
        for name, component in list(registry._components.items()):
            code = getattr(component.function, "__code__", None)
            is_example = code is not None and code.co_filename.startswith("<doctest")
            if name not in names and (is_example or not component.module.startswith("agentgym.")):
                del registry._components[name]
                plugins._loaded_files.pop(Path(component.file), None)
    os.environ.pop(COPIES_VARIABLE, None)


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a :mod:`testkit.warm_python`, one for each worker of the test run."""
    address = str(tmp_path_factory.mktemp("warm") / "socket")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    server = subprocess.Popen(
        [sys.executable, str(TESTKIT / "warm_python.py"), "serve", address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    yield address
    server.kill()
    server.wait()


@pytest.fixture(scope="session")
def warm_commands(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the front of ``PATH`` whose ``agentgym`` and ``python`` run in :func:`warm_python`."""
    folder = tmp_path_factory.mktemp("commands")
    client = f'exec "{sys.executable}" -S -E "{TESTKIT / "warm_python.py"}" run "{warm_python}"'
    for name, arguments in (("agentgym", '-m agentgym "$@"'), ("python", '"$@"')):
        (folder / name).write_text(f"#!/bin/sh\n{client} {arguments}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def warm_agentgym(warm_commands: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``agentgym`` with arguments in :func:`warm_python`, in the folder ``cwd``, with the environment ``env``."""

    def run(*arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(warm_commands / "agentgym"), *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def warm_run(warm_commands: Path) -> Callable[..., str]:
    """Runs a script with arguments in :func:`warm_python`, and the scripts that it starts; returns what it prints.

    Scripts that start browsers need ``children=False``: a browser's launcher gets more files than three.
    """
    python = str(warm_commands / "python")

    def run(script: Path | str, *arguments: object, cwd: Path = ROOT, children: bool = True) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"WARM_PYTHON": python} if children else {})
        command = [python, str(ROOT / script), *map(str, arguments)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=cwd)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return run
