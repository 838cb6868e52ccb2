"""Ways of the trainer's weights to vLLM servers.

A :class:`WeightSync` has two halves. :meth:`~WeightSync.publish` runs once per version, in the trainer;
:meth:`~WeightSync.install` runs once per version and server, and also for a server that comes back. It ends with the
server's own word, by checksum, on what it was given. That the weights are in place and used the pool sees for
itself, by the evidence taken at ``publish`` (:mod:`agentgym.trainers.engines.vllm.proof`).

Those here go through files. ``folder`` writes all weights, adapters merged, to a folder that the servers see under the
same path; ``lora`` writes only the adapters, which vLLM swaps. From GPU to GPU, without files:
:mod:`agentgym.trainers.engines.vllm.transfer`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentgym.errors import EngineError, boundary
from agentgym.trainers.engines.vllm.client import Held, VllmClient
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import checksum_of
from agentgym.trainers.engines.vllm.proof import Evidence, Witness
from agentgym.trainers.engines.vllm.wire import ServerFaultError

NUM_PROBE_TOKENS = 32
NUM_KEPT = 2
"""Versions whose files stay: the current one, and the one before, which a slow server may still be reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Weights of one version, where servers can get them."""

    version: int
    checksum: str
    """What tells its content from others: of files SHA-256 over names and contents, in hexadecimal."""
    folder: Path
    """Of files; the current folder where there are none."""
    probe_ids: tuple[int, ...]
    """Tokens that a server scores to show that it computes with these weights."""
    evidence: Evidence
    """What servers must show of these weights, and of these tokens."""

    @property
    def cache_salt(self) -> str:
        """Prefixes computed with other weights, of this run or another, must never be found in a server's cache."""
        return f"{self.version}-{self.checksum}"


def published(version: int, checksum: str, evidence: Evidence, vocab_size: int, *, folder: Path = Path()) -> Published:
    """A version with the tokens that show whether a server computes with it."""
    ids = probe_ids(version, vocab_size)
    return Published(version=version, checksum=checksum, folder=folder, probe_ids=ids, evidence=evidence)


def probe_ids(version: int, vocab_size: int) -> tuple[int, ...]:
    """The tokens that a server of a version is to score."""
    return tuple(random.Random(version).choices(range(vocab_size), k=NUM_PROBE_TOKENS))


class WeightSync(Protocol):
    """A way from the trainer's weights to a server's."""

    def publish(self, version: int, dtypes: Collection[str]) -> Published:
        """Make the trainer's current weights available as ``version``, to servers of these dtypes."""
        ...

    async def install(
        self, client: VllmClient, base_name: str, published: Published, timeout_s: float, *, is_paused: bool = False
    ) -> str:
        """Bring one server to ``published``, and make sure of it; the name under which it serves these weights.

        Args:
            is_paused: the server was paused with requests in flight, and is resumed by the caller.

        Raises:
            EngineError: it could not be done, or the server holds something else afterwards.
        """
        ...

    def close(self) -> None:
        """Remove what was published."""
        ...


class _Folder:
    """Versions as folders ``v000003-1a2b3c4d``, each there whole or not at all."""

    def __init__(self, root: Path, save: Callable[[Path], object], witness: Witness, vocab_size: int) -> None:
        self._root, self._save, self._witness, self._vocab_size = root.resolve(), save, witness, vocab_size
        self._kept: list[Path] = []

    def publish(self, version: int, dtypes: Collection[str]) -> Published:
        """Write the trainer's current weights as ``version``; older versions but the last are removed."""
        partial = self._root / f"v{version:06d}.partial"
        with boundary(EngineError, f"writing weights to {self._root}"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._save(partial)
            checksum = checksum_of(sorted(partial.glob("*.safetensors")))
            folder = partial.with_name(f"v{version:06d}-{checksum[:8]}")
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        self._kept = [*(path for path in self._kept if path != folder), folder]
        while len(self._kept) > NUM_KEPT:
            shutil.rmtree(self._kept.pop(0), ignore_errors=True)
        evidence = self._witness(probe_ids(version, self._vocab_size), dtypes)
        return published(version, checksum, evidence, self._vocab_size, folder=folder)

    def close(self) -> None:
        """Remove what was published."""
        while self._kept:
            shutil.rmtree(self._kept.pop(), ignore_errors=True)


class FolderSync(_Folder):
    """All weights through a folder.

    Args:
        root: a folder that the servers see under the same path.
        save: writes the trainer's current weights into a folder, as ``*.safetensors`` with checkpoint names.
        witness: gives the evidence that servers are measured by.
    """

    async def install(
        self, client: VllmClient, base_name: str, published: Published, timeout_s: float, *, is_paused: bool = False
    ) -> str:
        wanted = Held(version=published.version, checksum=published.checksum)
        if await client.held(timeout_s) == wanted:
            return base_name
        arguments = {
            "folder": str(published.folder),
            "version": published.version,
            "checksum": published.checksum,
        }
        found = client.same_held(await client.rpc("agentgym_load", arguments, timeout_s))
        if found != wanted:
            raise ServerFaultError(f"it holds version {found.version} ({found.checksum[:8]}) after loading {wanted}")
        return base_name


class LoraSync(_Folder):
    """Adapters alone, each version under a name of its own; a server that was restarted does not know the name.

    Args:
        root: a folder that the servers see under the same path.
        save: writes the trainer's current adapters into a folder, as peft does.
        witness: gives the evidence that servers are measured by.
    """

    async def install(
        self, client: VllmClient, base_name: str, published: Published, timeout_s: float, *, is_paused: bool = False
    ) -> str:
        name = f"{base_name}-v{published.version}-{published.checksum[:8]}"
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
            if old != name and old.startswith(f"{base_name}-v"):
                await client.post("/v1/unload_lora_adapter", {"lora_name": old}, timeout_s, expects_json=False)
        return name
