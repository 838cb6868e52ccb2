"""Warm pools of sandboxes that all environments of this process share, one pool per kind."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from agentgym.errors import unknown_name
from agentgym.sandbox import Limits, Mount, Sandbox
from agentgym.sandboxes.images import DEFAULT_IMAGE
from agentgym.sandboxes.ladder import BACKENDS, Backend, open_sandbox
from agentgym.sandboxes.pool import PooledSandbox, SandboxPool
from agentgym.settings import Range, check_number

Wanted = Backend | Literal["auto"]
_NUM_READY = 2
_WAIT_S = 110.0  # just below a rollout's time limit of a reset


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxKind:
    """The kind of sandbox that an environment uses, and the number of them in this process.

    Example:
        >>> SandboxKind(backend="process", max_open=4).max_open
        4
        >>> SandboxKind(backend="podman")
        Traceback (most recent call last):
        agentgym.errors.UnknownNameError: unknown sandbox 'podman'; known: auto, docker, namespaces, process
    """

    backend: Wanted = "auto"
    """``auto`` takes the strongest kind, see :func:`~agentgym.sandboxes.ladder.open_sandbox`."""
    require: frozenset[str] = frozenset()
    """Required guarantees."""
    image: str = DEFAULT_IMAGE
    limits: Limits = Limits()
    max_open: int = 16
    """Most open sandboxes; further environments wait until one is given back."""
    mounts: tuple[Mount, ...] = ()
    """Folders of the host that code inside can read."""

    def open(self, backend: Wanted | None = None) -> Sandbox:
        """Open a sandbox of this kind, or of another backend."""
        return open_sandbox(
            backend or self.backend, limits=self.limits, require=self.require, image=self.image, mounts=self.mounts
        )

    def __post_init__(self) -> None:
        if self.backend not in ("auto", *get_args(Backend)):
            raise unknown_name("sandbox", self.backend, ("auto", *BACKENDS))
        check_number("max_open", self.max_open, Range(at_least=1))


class SharedPool:
    """A warm pool of one kind of sandbox, which :func:`shared_pool` returns."""

    def __init__(self, kind: SandboxKind) -> None:
        self.kind = kind
        first: list[Sandbox] = [kind.open()]
        self.capabilities = first[0].capabilities()
        backend: Wanted = self.capabilities.backend  # type: ignore[assignment]  # one of BACKENDS

        def open_one() -> Sandbox:
            with lock:  # the pool opens several sandboxes at a time
                if first:
                    return first.pop()
            return kind.open(backend)

        lock = threading.Lock()
        self._pool = SandboxPool(open_one, num_ready=min(_NUM_READY, kind.max_open), max_open=kind.max_open)

    @property
    def backend(self) -> str:
        """Name of the kind of sandbox."""
        return self.capabilities.backend

    def acquire(self) -> PooledSandbox:
        """Return a sandbox in its initial state; its ``close()`` gives it back.

        A caller that holds a sandbox must not wait for another one: if all callers did, none would be given back.

        Raises:
            SandboxError: no sandbox could be opened, or none was given back for nearly two minutes.
        """
        return self._pool.acquire(_WAIT_S)

    def close(self) -> None:
        """Close all sandboxes of the pool."""
        self._pool.close()


_pools: dict[tuple[int, SandboxKind], SharedPool] = {}
_lock = threading.Lock()


def shared_pool(kind: SandboxKind) -> SharedPool:
    """Return this process's pool of a kind. The first call opens it; it closes when the process ends.

    Raises:
        SandboxRefusedError: the required guarantees are not available here.
        SandboxError: the named backend does not work here.
    """
    key = (os.getpid(), kind)  # a forked child must not use its parent's pool
    with _lock:
        if key not in _pools:
            _pools[key] = SharedPool(kind)
        return _pools[key]


def close_shared_pools(keep: Callable[[SandboxKind], bool] = lambda kind: False) -> None:
    """Close this process's pools except those to ``keep``. The next use opens them again."""
    with _lock:
        mine = [key for key in _pools if key[0] == os.getpid() and not keep(key[1])]
        closing = [_pools.pop(key) for key in mine]
    for pool in closing:
        pool.close()


atexit.register(close_shared_pools)
