"""A running copy of an application: its process, a free port, and its data, which are restored for every episode.

The process runs under :mod:`agentgym.processes.guard`, which ends it, with all that it started, when its owner ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from agentgym.cache import built_once, cache_folder
from agentgym.canonical import digest
from agentgym.envs.gui.web_app.spec import WebApp
from agentgym.errors import EnvError, EnvTimeoutError
from agentgym.installation import with_commands
from agentgym.ports import free_port
from agentgym.processes.watched import KEPT_VARIABLES, end_of_log, end_watched, start_watched

_TOLD = 2000
_POLL_S = 0.03
_TRIES = 3


def make_data(app: WebApp, python: str) -> Path:
    """Return the folder that every episode's data are copied from; made once, then kept in the user's cache.

    Raises:
        EnvError: the command that makes it fails; the message has the end of its output.
    """
    if app.data:
        folder = app.here / app.data
        if not folder.is_dir():
            raise EnvError(f"application {app.name!r}: no folder {str(folder)!r} of data")
        return folder
    sources = {
        str(path.relative_to(app.here)): path.read_bytes().hex()
        for path in sorted(app.here.glob("*"))
        if path.is_file()
    }
    name = f"{app.name}-{digest([python, app.prepare, dict(app.variables), sources])[:16]}"

    def build(data: Path) -> None:
        words = {"python": python, "here": str(app.here), "data": str(data), "port": "0"}
        with tempfile.TemporaryDirectory() as scratch:
            _prepare(app, words, Path(scratch))

    return built_once(cache_folder() / "web_apps" / name, build)


class AppProcess:
    """One copy of an application, for one episode at a time.

    Args:
        app: the application.
        python: the interpreter that ``{python}`` stands for.
    """

    def __init__(self, app: WebApp, python: str) -> None:
        self._app, self._python = app, python
        self._folder = Path(tempfile.mkdtemp(prefix=f"agentgym-{app.name}-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._end = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.port = 0

    @property
    def database(self) -> Path:
        """Path of its SQLite file."""
        return self._data / self._app.database

    @property
    def is_alive(self) -> bool:
        """True while the application runs."""
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Restore the data of the start, and wait until the application serves them.

        Raises:
            EnvError: it does not start; the message has the end of its output.
        """
        snapshot = make_data(self._app, self._python)
        if self._app.restarts:
            self._stop()
        _copy_back(snapshot, self._data)
        for attempt in range(_TRIES):
            if not self.is_alive:
                self._start()
            if self._serves():
                return
            self._stop()
            if attempt + 1 < _TRIES and "in use" not in self.said():  # else the port was taken meanwhile
                break
        raise EnvError(self._failed("does not start"))

    def check_alive(self) -> None:
        """Raise an error if the application has ended.

        Raises:
            EnvError: it has ended.
        """
        if not self.is_alive:
            raise EnvError(self._failed("has ended"))

    def said(self) -> str:
        """Return the end of its output."""
        return end_of_log(self._folder)

    def close(self) -> None:
        """Stop it and remove its data."""
        self._stop()
        self._end()

    # ---------------------------------------------------------------------------------------------------- private

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _start(self) -> None:
        self.port = free_port()
        words = {"python": self._python, "here": str(self._app.here), "data": str(self._data), "port": str(self.port)}
        variables = _variables(self._app, words, self._folder)
        self._process = start_watched(_filled(self._app.start, words), variables, self._folder)
        self._kill = weakref.finalize(self, end_watched, self._process)

    def _serves(self) -> bool:
        """Return True once it answers, or False if it ends first."""
        deadline = time.monotonic() + self._app.start_s
        url, host = f"http://127.0.0.1:{self.port}{self._app.health}", {"host": self._app.host}
        while self.is_alive:
            with suppress(httpx.HTTPError):
                # plain HTTP needs no certificates, and reading them takes 30 ms of processor time
                if httpx.get(url, headers=host, timeout=5.0, trust_env=False, verify=False).status_code < 400:
                    return True
            if time.monotonic() > deadline:
                raise EnvTimeoutError(
                    self._failed(f"does not answer {self._app.health} within {self._app.start_s:g} s")
                )
            time.sleep(_POLL_S)
        return False

    def _stop(self) -> None:
        if self._process is not None:
            self._kill()
            self._process = None

    def _failed(self, what: str) -> str:
        return _told(self._app, what, self.said())


def _prepare(app: WebApp, words: Mapping[str, str], folder: Path) -> None:
    try:
        done = subprocess.run(
            _filled(app.prepare, words),
            env=_variables(app, words, folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=app.prepare_s,
            check=False,
        )
    except OSError as error:
        raise EnvError(_told(app, "cannot make its data", str(error))) from error
    except subprocess.TimeoutExpired as error:
        raise EnvTimeoutError(_told(app, f"does not make its data within {app.prepare_s:g} s", "")) from error
    if done.returncode:
        raise EnvError(_told(app, "cannot make its data", done.stdout.decode(errors="replace")[-_TOLD:]))


def _told(app: WebApp, what: str, said: str) -> str:
    needs = f"; it needs: {with_commands(app.install)}" if app.install else ""
    return f"the application {app.name!r} {what}{needs}\n{said.strip()}".strip()


def _filled(command: Sequence[str], words: Mapping[str, str]) -> list[str]:
    return [word.format_map(words) for word in command]


def _variables(app: WebApp, words: Mapping[str, str], home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    own = {name: value.format_map(words) for name, value in app.variables.items()}
    return {**kept, "HOME": str(home), "PYTHONUNBUFFERED": "1", **own}


def _copy_back(snapshot: Path, data: Path) -> None:
    """Replace a folder's files by those of another. Keep the folder itself, since a process may run in it."""
    data.mkdir(exist_ok=True)
    for entry in data.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    shutil.copytree(snapshot, data, dirs_exist_ok=True)
