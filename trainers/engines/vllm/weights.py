"""Transfer of the trainer's weights to vLLM servers.

A :class:`WeightSync` has two halves. :meth:`~WeightSync.publish` runs once per version, in the trainer; if several
ranks give servers weights, the others :meth:`~WeightSync.follow` the first.
:meth:`~WeightSync.install` runs once per version and server, also for a server that comes back. It ends with a checksum
from the server about the weights it was given. The pool then checks that they are loaded and used, by the evidence
computed in ``publish`` (:mod:`agentgym.trainers.engines.vllm.proof`).

The classes here use files. ``folder`` writes all weights, with merged adapters, to a folder that the servers see under
the same path. ``lora`` writes only the adapters, which vLLM swaps. :mod:`agentgym.trainers.engines.vllm.transfer`
transfers weights from GPU to GPU without files.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from agentgym.canonical import digest
from agentgym.errors import EngineError, boundary
from agentgym.trainers.engines.vllm.client import Held, VllmClient
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import checksum_of
from agentgym.trainers.engines.vllm.proof import Evidence, WeightChecksum
from agentgym.trainers.engines.vllm.wire import ServerFaultError
from agentgym.trainers.models.sources import share_weights

NUM_PROBE_TOKENS = 32
NUM_KEPT = 2
"""Number of versions whose files are kept: the current one and the previous one, which a slow server may read."""


Tensors = Sequence[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Weights of one version that are available to servers."""

    version: int
    checksum: str
    """Fingerprint of the weights; for files a SHA-256 over names and contents, in hexadecimal."""
    folder: Path
    """Folder of the files; the current folder if there are no files."""
    probe_ids: tuple[int, ...]
    """Tokens that a server scores to show that it computes with these weights."""
    evidence: Evidence
    """Evidence that servers must give for these weights and tokens."""

    @property
    def held(self) -> Held:
        """The answer of a server that has these weights."""
        return Held(version=self.version, checksum=self.checksum)

    @property
    def cache_salt(self) -> str:
        """Salt of cache keys, so that prefixes computed with other weights, of any run, are never found in a cache."""
        return f"{self.version}-{self.checksum}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Readiness of the servers of one process before new weights are published."""

    num_ready: int
    """Number of servers that it gives weights, and that are ready or asleep."""
    dtypes: frozenset[str]
    """Dtypes of the servers' computation, as far as they have told this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenServer:
    """A server that has proved to have the current weights."""

    name: str
    """Name of the model in requests."""
    given: Mapping[str, int] | None
    """Number of tokens of each request in flight when the server was paused for them; None if it was not paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A version of the weights, and the servers that have it, for processes that only send requests."""

    published: Published
    servers: Mapping[str, ProvenServer]
    """The servers by address."""


def published(version: int, checksum: str, evidence: Evidence, vocab_size: int, *, folder: Path = Path()) -> Published:
    """Return a version with its probe tokens and evidence."""
    ids = probe_ids(version, vocab_size)
    return Published(version=version, checksum=checksum, folder=folder, probe_ids=ids, evidence=evidence)


def probe_ids(version: int, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens that a server must score for a version."""
    return tuple(random.Random(version).choices(range(vocab_size), k=NUM_PROBE_TOKENS))


class Source(Protocol):
    """Weights that several ranks have gathered for the next version."""

    def save(self, folder: Path, dtypes: Collection[str]) -> None:
        """Write them into a folder, for servers with these dtypes."""
        ...

    def tensors(self) -> Tensors:
        """Return them by checkpoint name; they stay as they are."""
        ...

    def compute_checksum(self, token_ids: Sequence[int], dtypes: Collection[str]) -> Evidence:
        """Return the evidence for them; see :data:`~agentgym.trainers.engines.vllm.proof.WeightChecksum`."""
        ...


class WeightSync(Protocol):
    """Interface of a transfer of weights from the trainer to servers."""

    def borrow(self, source: Source) -> None:
        """Take weights and evidence from this source from now on."""
        ...

    def forget(self) -> None:
        """Free the memory of the weights that were published, before the next ones are gathered."""
        ...

    def publish(self, version: int, dtypes: Collection[str]) -> Published:
        """Make the trainer's current weights available as ``version``, to servers with these dtypes."""
        ...

    def follow(self, published: Published) -> None:
        """Make this process's weights available to servers, which are equal to those that were published."""
        ...

    async def check(self, client: VllmClient, timeout_s: float) -> None:
        """Check that a server can take weights in this way.

        Raises:
            WrongServerError: it cannot.
        """
        ...

    async def install(
        self, client: VllmClient, base_name: str, published: Published, timeout_s: float, *, is_paused: bool = False
    ) -> str:
        """Load ``published`` into one server and verify it; return the name under which it serves these weights.

        Args:
            is_paused: True if the caller has paused the server with requests in flight, and resumes it.

        Raises:
            EngineError: the load failed, or the server has other weights afterwards.
        """
        ...

    def close(self) -> None:
        """Remove what was published."""
        ...


Save = Callable[[Path, Collection[str]], object]
"""Type of a function that writes the trainer's current weights into a folder, for servers with these dtypes."""


class _Folder:
    """Versions as folders such as ``v000003-1a2b3c4d``, which are created atomically."""

    def __init__(self, root: Path, save: Save, witness: WeightChecksum, vocab_size: int) -> None:
        self._root, self._save, self._witness, self._vocab_size = root.resolve(), save, witness, vocab_size
        self._kept: list[Path] = []

    def borrow(self, source: Source) -> None:
        self._save, self._witness = source.save, source.compute_checksum

    def forget(self) -> None:
        """Do nothing, because the files hold no memory."""

    def publish(self, version: int, dtypes: Collection[str]) -> Published:
        """Write the trainer's current weights as ``version``; delete older versions except the previous one."""
        partial = self._root / f"v{version:06d}.partial"
        with boundary(EngineError, f"writing weights to {self._root}"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._save(partial, dtypes)
            share_weights(partial)  # servers may run as another user
            checksum = checksum_of(sorted(partial.glob("*.safetensors")))
            folder = partial.with_name(f"v{version:06d}-{checksum[:8]}")
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        self._kept = [*(path for path in self._kept if path != folder), folder]
        while len(self._kept) > NUM_KEPT:
            shutil.rmtree(self._kept.pop(0), ignore_errors=True)
        evidence = self._witness(probe_ids(version, self._vocab_size), dtypes)
        return published(version, checksum, evidence, self._vocab_size, folder=folder)

    def follow(self, published: Published) -> None:
        """Do nothing, because the files are there for every process."""

    async def check(self, client: VllmClient, timeout_s: float) -> None:
        """Accept every server; one that cannot read the folder says so when it loads."""

    def close(self) -> None:
        """Remove what was published."""
        while self._kept:
            shutil.rmtree(self._kept.pop(), ignore_errors=True)


class FolderSync(_Folder):
    """Sends all weights through a folder.

    Args:
        root: a folder that the servers see under the same path.
        save: writes the weights as ``*.safetensors`` with checkpoint names.
        witness: computes the evidence by which servers are checked.
    """

    async def install(
        self, client: VllmClient, base_name: str, published: Published, timeout_s: float, *, is_paused: bool = False
    ) -> str:
        if name := await name_with_weights(client, base_name, published, timeout_s):
            return name
        arguments = {
            "folder": str(published.folder),
            "version": published.version,
            "checksum": published.checksum,
        }
        found = client.same_held(await client.rpc("agentgym_load", arguments, timeout_s))
        if found != published.held:
            raise ServerFaultError(
                f"it holds version {found.version} ({found.checksum[:8]}) after loading {published.held}"
            )
        return base_name


class LoraSync(_Folder):
    """Sends only adapters. Each version has its own name, which a restarted server does not know. Runs with folders of
    their own can share a server.

    Args:
        root: a folder that the servers see under the same path.
        save: writes the adapters, as peft does.
        witness: computes the evidence by which servers are checked.
    """

    async def install(
        self, client: VllmClient, base_name: str, published: Published, timeout_s: float, *, is_paused: bool = False
    ) -> str:
        name = _adapter_name(base_name, published)
        loaded = await client.adapters(timeout_s)
        if name not in loaded:
            arguments = {"folder": str(published.folder)}
            seen = {str(a.get("checksum")) for a in await client.rpc("agentgym_checksum", arguments, timeout_s)}
            if seen != {published.checksum}:
                raise ServerFaultError(f"it does not see the adapters of version {published.version} in {arguments}")
            body = {"lora_name": name, "lora_path": str(published.folder)}
            await client.post("/v1/load_lora_adapter", body, timeout_s, expects_json=False)
            if name not in await client.adapters(timeout_s):
                raise ServerFaultError(f"it does not list the adapter {name} after loading it")
        for old in loaded:
            if old != name and old.startswith(_run_name(base_name, published)):  # other runs keep theirs
                await client.post("/v1/unload_lora_adapter", {"lora_name": old}, timeout_s, expects_json=False)
        return name


NameOf = Callable[[VllmClient, str, Published, float], Awaitable[str]]
"""Type of a function that returns the name under which a server serves some weights; empty if it has others."""


async def name_with_weights(client: VllmClient, base_name: str, published: Published, timeout_s: float) -> str:
    """Return the server's own name if it has these weights, else an empty one."""
    return base_name if await client.held(timeout_s) == published.held else ""


async def name_with_adapters(client: VllmClient, base_name: str, published: Published, timeout_s: float) -> str:
    """Return the name of these adapters if the server has them, else an empty one."""
    name = _adapter_name(base_name, published)
    return name if name in await client.adapters(timeout_s) else ""


def _adapter_name(base_name: str, published: Published) -> str:
    return f"{_run_name(base_name, published)}v{published.version}-{published.checksum[:8]}"


def _run_name(base_name: str, published: Published) -> str:
    """Return the beginning of the names of a run's adapters, by its folder of weights, also after it is resumed."""
    return f"{base_name}-{digest(str(published.folder.parent))[:6]}-"
