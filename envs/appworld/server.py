"""Clients of AppWorld's environment server, of which each process runs one world.

A server keeps its world in a module global, holds the databases and the frozen clock in its process, and runs the
agent's code in its main thread. It therefore runs one episode at a time. The agent's code runs inside the server,
without a sandbox.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import httpx

from agentgym import web_guard
from agentgym.envs.appworld import program
from agentgym.envs.appworld.data import AppWorldData
from agentgym.errors import EnvError, EnvTimeoutError, UsageError, error_text
from agentgym.processes.loaded import ForkedProcess, Loaded
from agentgym.processes.watched import KEPT_VARIABLES, end_of_log

PYTHON_VARIABLE: Final = "AGENTGYM_APPWORLD_PYTHON"
"""Environment variable that names a Python interpreter with ``appworld``."""
EXPERIMENT: Final = "agentgym"
"""Experiment name under which AppWorld saves an agent's results."""
_TOLD: Final = 1500


class Server(Protocol):
    """A server that runs and grades an episode."""

    def begin(self, name: str) -> None:
        """Prepare an episode of a task."""

    def call(self, operation: str, timeout_s: float, **values: object) -> Any:
        """Send a request, and return its ``output``."""

    def judge(self, name: str, timeout_s: float) -> dict[str, Any]:
        """Run the task's tests on the final databases."""

    def end(self) -> None:
        """End the episode."""

    def close(self) -> None:
        """Free everything."""


def appworld_python(named: str | None) -> str:
    """Return the path of a Python with ``appworld``: the named one, ``$AGENTGYM_APPWORLD_PYTHON``, or this one.

    Raises:
        UsageError: the named one does not exist, or none is named and this one has no ``appworld``.
    """
    python = named or os.environ.get(PYTHON_VARIABLE)
    if python:
        found = shutil.which(python)
        if found is None:
            raise UsageError(f"{python} is no program; python= or {PYTHON_VARIABLE} names a Python that has appworld")
        # absolute, since it runs in another folder, but with links unresolved, which would leave its environment
        return os.path.abspath(found)
    if importlib.util.find_spec("appworld") is None:
        raise UsageError(
            "agentgym/AppWorld-v0 needs a Python that has appworld, which pins old versions: python -m venv "
            ".venv-appworld, .venv-appworld/bin/pip install appworld==0.1.3.post1, .venv-appworld/bin/appworld install,"
            f" and export {PYTHON_VARIABLE}=.venv-appworld/bin/python"
        )
    return sys.executable


def request(url: str, operation: str, timeout_s: float, values: dict[str, object]) -> Any:
    """Send a request to a server, and return its ``output``.

    Raises:
        EnvTimeoutError: the server does not answer in time.
        EnvError: the server cannot be reached, or answers with an error or invalid JSON.
    """
    # The server's clock jumps when it is frozen, which ends kept-alive connections.
    headers = {"Connection": "close"}
    # Plain HTTP needs no certificates, and reading them takes 30 ms of processor time.
    verify = url.startswith("https:")
    try:
        answer = httpx.post(
            f"{url}/{operation}", json=values, headers=headers, timeout=timeout_s, trust_env=False, verify=verify
        )
    except httpx.TimeoutException:
        raise EnvTimeoutError(f"AppWorld's server did not answer {operation} within {timeout_s:g} s") from None
    except httpx.HTTPError as error:
        raise EnvError(f"AppWorld's server did not answer {operation}: {error_text(error)}") from error
    if answer.status_code != 200:
        raise EnvError(f"AppWorld's server answered {operation} with {answer.status_code}: {answer.text[:_TOLD]}")
    try:
        return answer.json()["output"]
    except (ValueError, KeyError, TypeError) as error:
        raise EnvError(f"AppWorld's server answered {operation} with no output: {answer.text[:_TOLD]}") from error


class OwnServer:
    """A local server process, which is forked for each episode; see :mod:`agentgym.processes.forks`.

    It uses a separate folder with the databases, the documentation and the specification of one task, but no ground
    truth. Another process runs the tests on the saved changes of the databases.

    Args:
        data: AppWorld's data.
        python: an interpreter with ``appworld``.
        start_s: seconds within which AppWorld must load.
    """

    def __init__(self, data: AppWorldData, python: str, start_s: float) -> None:
        self._data, self._python, self._start_s = data, python, start_s
        self._folder = Path(tempfile.mkdtemp(prefix="agentgym-appworld-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._loaded: Loaded | None = None
        self._job: ForkedProcess | None = None
        self._url = ""

    @property
    def pid(self) -> int | None:
        """Process id of its watcher; None between episodes."""
        return None if self._job is None else self._job.pid

    def begin(self, name: str) -> None:
        """Prepare an episode of a task."""
        self.end()
        self._lay_out(name)
        self._job = self._start("serve", self._folder, (web_guard.__file__,), listens=True)
        self._url = f"http://127.0.0.1:{self._job.port}"

    def call(self, operation: str, timeout_s: float, **values: object) -> Any:
        """Send a request and return its ``output``."""
        try:
            return request(self._url, operation, timeout_s, values)
        except EnvTimeoutError:
            self.end()
            raise
        except EnvError as error:
            raise EnvError(_failed(str(error), self._said())) from error

    def judge(self, name: str, timeout_s: float) -> dict[str, Any]:
        """Run the task's tests on the final databases."""
        self.end()  # so that no process writes any more
        with tempfile.TemporaryDirectory(prefix="agentgym-appworld-") as scratch:
            root, task = Path(scratch), Path("experiments", "outputs", EXPERIMENT, "tasks", name, "dbs")
            (root / "data").symlink_to(self._data.folder)
            shutil.copytree(self._folder / task, root / task)
            job = self._start("judge", root, (name, EXPERIMENT, "found.json"))
            try:
                code = job.exit_code(timeout_s)
            except TimeoutError:
                raise EnvTimeoutError(f"AppWorld's tests of {name} did not end within {timeout_s:g} s") from None
            finally:
                job.end()
            if code != 0:
                raise EnvError(f"AppWorld's tests of {name} could not run: {end_of_log(root)}")
            found: dict[str, Any] = json.loads((root / "found.json").read_text(encoding="utf-8"))
            return found

    def end(self) -> None:
        """End the episode."""
        if self._job is not None:
            self._job.end()
            self._job = None

    def close(self) -> None:
        """Free all resources."""
        self.end()
        if self._loaded is not None:
            self._loaded.leave()
            self._loaded = None
        self._remove()

    # ---------------------------------------------------------------------------------------------------- private

    def _lay_out(self, name: str) -> None:
        source, data = self._data.task_folder(name), self._folder / "data"
        shutil.rmtree(self._folder / "experiments", ignore_errors=True)
        shutil.rmtree(data, ignore_errors=True)
        try:
            for part in ("base_dbs", "api_docs"):
                shutil.copytree(self._data.folder / part, data / part)
            shutil.copytree(source / "dbs", data / "tasks" / name / "dbs")
            shutil.copy(source / "specs.json", data / "tasks" / name)
        except (OSError, shutil.Error) as error:
            raise EnvError(f"AppWorld's data of {name} cannot be copied: {error}") from error

    def _start(self, what: str, root: Path, words: Sequence[str] = (), *, listens: bool = False) -> ForkedProcess:
        if self._loaded is None:
            self._loaded = loaded_appworld(self._python)
        job = self._loaded.start(what, root, variables_of(root), words, listens=listens)
        try:
            if job.begins(self._start_s):
                return job
        except TimeoutError:
            job.end()
            told = _failed(f"AppWorld does not load within {self._start_s:g} s", self._loaded.said())
            raise EnvTimeoutError(told) from None
        job.end()
        raise EnvError(_failed("AppWorld does not start", self._loaded.said()))

    def _said(self) -> str:
        return end_of_log(self._folder)


def _failed(what: str, said: str) -> str:
    return f"{what}; its log ends: {said}" if said else what


def loaded_appworld(python: str) -> Loaded:
    """Return the process that has loaded AppWorld, for all environments of this process with the same Python."""
    return Loaded.shared(python, Path(program.__file__), variables_of)


def variables_of(root: Path) -> dict[str, str]:
    """Return the environment variables of an AppWorld process, with its folder instead of any set by the user."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    own = {"HOME": str(root), "APPWORLD_ROOT": str(root), "APPWORLD_CACHE": str(root / "cache")}
    # so that sets have the same order in every process
    return {**kept, **own, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}


class RemoteServer:
    """One of several running servers, reserved for one episode at a time in this process.

    Args:
        urls: addresses of servers started by ``appworld serve environment``, each with the ground truth.

    Raises:
        UsageError: there is no address.
    """

    _taken: set[str] = set()  # noqa: RUF012  (of the whole process)
    _lock = threading.Lock()

    def __init__(self, urls: str) -> None:
        self._urls = tuple(one.strip().rstrip("/") for one in urls.split(",") if one.strip())
        if not self._urls or not all(one.startswith(("http://", "https://")) for one in self._urls):
            raise UsageError(f"url is the address of AppWorld's server, such as http://127.0.0.1:9000; got {urls!r}")
        self._url: str | None = None

    def begin(self, name: str) -> None:
        """Prepare an episode of a task."""
        self.end()
        with self._lock:
            free = next((one for one in self._urls if one not in self._taken), None)
            if free is None:
                raise UsageError(
                    f"all {len(self._urls)} servers of url= are at work, and each plays one episode at a time; name "
                    f"more, with commas between them, or take --num-envs {len(self._urls)}"
                )
            self._taken.add(free)
            self._url = free

    def call(self, operation: str, timeout_s: float, **values: object) -> Any:
        """Send a request and return its ``output``."""
        if self._url is None:
            raise EnvError("AppWorld: no server before the episode begins")
        return request(self._url, operation, timeout_s, values)

    def judge(self, name: str, timeout_s: float) -> dict[str, Any]:
        """Run the task's tests on the final databases."""
        found: dict[str, Any] = self.call("evaluate", timeout_s, task_id=name, suppress_errors=True)
        return found

    def end(self) -> None:
        """End the episode."""
        with self._lock:
            if self._url is not None:
                self._taken.discard(self._url)
                self._url = None

    def close(self) -> None:
        """Free all resources."""
        self.end()
