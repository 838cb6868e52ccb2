"""An adversary in a sandbox: programs that attack each promise, and the promises that held."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentgym.canonical import packaged
from agentgym.check.report import CheckFailed
from agentgym.check.sandbox.subject import SandboxFactory
from agentgym.errors import SandboxError, SandboxSpentError, ToolError
from agentgym.sandbox import ExecResult, Limits, Sandbox

ALWAYS: Final = ("answers", "reset", "afterwards")
"""Promises that every sandbox makes. ``answers``: programs cannot forge the sandbox's answers. ``reset``: a reset
leaves nothing behind in the sandbox's own folders and interpreter. ``afterwards``: after any program, the sandbox
either works or reports that it is spent, never an infrastructure failure."""

_NEEDED: Final = {"traces": "signals"}
"""Promises that follow from a guarantee of another name. ``traces``: a reset also removes keys, System V objects and
processes, which cannot be told from those of the host unless code has a user or namespaces of its own."""
SIGNAL_ALL: Final = ("stops whatever it may", "ends whatever it may")
"""Programs that signal every process they can. They run only where a sandbox promises that these are its own."""
_HARMLESS: Final = ("filesystem", "network", "cpu")
"""Promises that an unprivileged user may attack without harm even if the sandbox does not make them."""
_WRONG: Final = ("SyntaxError:", "IndentationError:", "NameError:", "AttributeError:", "TypeError:")
_LIMITS: Final = Limits(wall_s=20, memory_mb=256, workspace_mb=64, tmp_mb=32, num_pids=32, num_cpus=0.5)
_TIMEOUT_S: Final = {"time": 0.5, "memory": 6.0, "reset": 6.0, "traces": 6.0}
_PATIENCE: Final = (1, 4, 16)
"""Multiples of the time-out: on a busy machine it may be over before Python has started."""
_SHARED: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/dev/mqueue")
"""Folders of the host that a reset empties, if code has files or a user of its own. Otherwise nothing there can be told
from the files of the person who started it."""
_READY: Final = "READY"
_BROKE: Final = "BROKE: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Result of the attempts to break one promise.

    Example:
        >>> Promise(name="network", is_promised=True, num_attempts=10, broken=("names: resolved",)).holds
        False
    """

    name: str
    is_promised: bool
    num_attempts: int
    """Number of attempts; 0 if the sandbox does not promise it and an attempt could harm an unprotected host."""
    broken: tuple[str, ...] = ()
    """Attempts that succeeded, with their effect."""

    @property
    def holds(self) -> bool:
        """True unless the sandbox promises it and an attempt broke it."""
        return not (self.is_promised and self.broken)

    def __str__(self) -> str:
        held = f"held {self.num_attempts - len(self.broken)} of {self.num_attempts} attempts"
        if not self.is_promised:
            return f"  -     {self.name:<10}  not promised; {held if self.num_attempts else 'not tried'}"
        return "\n        ".join(
            [f"  {'ok  ' if self.holds else 'FAIL'}  {self.name:<10}  promised; {held}", *self.broken]
        )


@functools.cache
def attempts() -> dict[str, Any]:
    """Return the programs in ``attempts.toml`` by promise and name."""
    programs: dict[str, Any] = packaged(__package__, "attempts.toml")
    return programs


def attack_sandbox(
    factory: SandboxFactory,
    *,
    only: Callable[[str], bool] = lambda promise: True,
    on_promise: Callable[[Promise], None] = lambda promise: None,
) -> tuple[Promise, ...]:
    """Try to break the promises of a kind of sandbox on this machine.

    Args:
        factory: opens a new sandbox with given limits.
        only: returns True for the names of promises to attack.
        on_promise: called with the result of each promise.
    """
    found = []
    with _targets() as names, _Arena(factory, names) as arena:
        for promise, programs in attempts().items():
            if promise in ("prelude", "voids") or not only(promise):
                continue
            in_force = arena.sandbox.capabilities().in_force
            is_promised = promise in ALWAYS or _NEEDED.get(promise, promise) in in_force
            tries = programs if is_promised or ("user" in in_force and promise in _HARMLESS) else {}
            if not (arena.is_confined or tries.keys().isdisjoint(SIGNAL_ALL)):
                tries = {name: code for name, code in tries.items() if name not in SIGNAL_ALL}
            broken = [
                f"{name}: {words}" for name, code in tries.items() if (words := arena.attempt(promise, name, code))
            ]
            found.append(Promise(name=promise, is_promised=is_promised, num_attempts=len(tries), broken=tuple(broken)))
            on_promise(found[-1])
        afterwards = Promise(
            name="afterwards", is_promised=True, num_attempts=arena.num_attempts, broken=tuple(arena.deaths)
        )
        on_promise(afterwards)
    return (*found, afterwards)


class _Arena:
    """The sandbox in use; a new one replaces it when it is spent."""

    def __init__(self, factory: SandboxFactory, names: dict[str, object]) -> None:
        self._factory = factory
        values = names | {"MEMORY_MB": _LIMITS.memory_mb, "NUM_PIDS": _LIMITS.num_pids}
        settings = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        self.sandbox: Sandbox = factory(_LIMITS)
        in_force = self.sandbox.capabilities().in_force
        settings += f"SHARED = {_SHARED if in_force & {'filesystem', 'user'} else ()!r}\n"
        self._head = f"{settings}{attempts()['prelude']}print({_READY!r}, flush=True)"
        self.num_attempts = 0
        self.deaths: list[str] = []

    @functools.cached_property
    def is_confined(self) -> bool:
        """True if the sandbox promises ``signals`` and a signal that does nothing did not reach the host."""
        probe = "processes of the host"
        return "signals" in self.sandbox.capabilities().in_force and not self.attempt(
            "signals", probe, attempts()["signals"][probe]
        )

    def attempt(self, promise: str, name: str, code: Any) -> str:
        """Run one attempt. Return the effect that it should not have had, or an empty text if the promise held."""
        self.num_attempts += 1
        plant, look = (code["plant"], code["look"]) if isinstance(code, dict) else (code, "")
        try:
            said = self._run(promise, plant).stdout
            if look:
                self.sandbox.reset()
                said = self._run(promise, look).stdout
            elif promise == "time":
                said += self._run(promise, '[broke("process %d is left" % pid) for pid in others()]').stdout
            self._must_work()
        except SandboxSpentError:  # the program ended the sandbox, and the limits held
            self._open_another()
            said = ""
        except (SandboxError, ToolError) as error:
            self.deaths.append(f"{promise}, {name}: {error}")
            self._open_another()
            said = ""
        return "; ".join(line.removeprefix(_BROKE) for line in said.splitlines() if line.startswith(_BROKE))[:300]

    def _run(self, promise: str, code: str) -> ExecResult:
        for patience in _PATIENCE:
            timeout_s = patience * _TIMEOUT_S.get(promise, 10.0)
            result = self.sandbox.run_python(f"{self._head}\n{code}", timeout_s=timeout_s)
            if _READY in result.stdout or not result.timed_out:
                break
        if _READY not in result.stdout or (result.exit_code == 1 and any(word in result.stderr for word in _WRONG)):
            raise CheckFailed(f"the attempt itself is wrong, not held: {result.stderr[-300:]}")
        return result

    def _must_work(self) -> None:
        if self.sandbox.run_python("print(6 * 7)").stdout != "42\n":
            raise SandboxError("it runs nothing any more")
        self.sandbox.restore(self.sandbox.snapshot())
        self.sandbox.reset()

    def _open_another(self) -> None:
        self.sandbox.close()
        self.sandbox = self._factory(_LIMITS)

    def __enter__(self) -> _Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.sandbox.close()


@contextmanager
def _targets() -> Iterator[dict[str, object]]:
    """Create targets on this host for the adversary: a secret, a server, an abstract socket, a variable, a process."""
    mark = f"agentgym-adversary-{uuid.uuid4().hex}"
    with (
        tempfile.NamedTemporaryFile("w", prefix="agentgym-adversary-") as secret,
        socket.create_server(("0.0.0.0", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        ExitStack() as waiting,
    ):
        secret.write(json.dumps("of the host"))
        secret.flush()
        Path(secret.name).chmod(0o644)
        canary = mark.replace("adversary", "canary")  # a process that ends with this one
        command = [sys.executable, "-c", "input()", canary]
        process = waiting.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL))
        waiting.callback(process.kill)  # an attempt may have stopped it
        abstract.bind("\0" + mark)
        abstract.listen()
        os.environ["AGENTGYM_ADVERSARY"] = mark
        try:
            key = int(mark[-7:], 16) | 1  # number of objects that sandboxes share unless they have their own namespace
            port = server.getsockname()[1]
            yield {"SECRET": secret.name, "PORT": port, "MARK": mark, "CANARY": canary, "KEY": key}
        finally:
            del os.environ["AGENTGYM_ADVERSARY"]
