"""Transfer of weights from the trainer's GPU to a server's without files, with vLLM's own protocol.

:class:`TransferSync` is the third :class:`~agentgym.trainers.engines.vllm.weights.WeightSync`. It keeps a copy of the
current weights, and updates a server in the steps of vLLM's protocol: pause, init (once per start of the server),
start, update, finish, resume. A :class:`TransferChannel` moves bytes: ``ipc`` passes memory handles of the copy to a
server on the same GPU; ``nccl`` broadcasts it to servers on other GPUs (:mod:`agentgym.trainers.engines.vllm.nccl`).

The protocol is that of vLLM 0.26 to 0.33 (:mod:`agentgym.trainers.engines.vllm.versions`), for ``nccl`` from 0.32 on:
https://docs.vllm.ai/en/v0.32.0/training/weight_transfer/.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import pickle
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from agentgym.canonical import is_whole
from agentgym.env.worker_thread import call_in_own_thread
from agentgym.errors import EngineError, boundary
from agentgym.trainers.distributed.devices import on_this_device
from agentgym.trainers.engines.vllm.client import VllmClient, WrongServerError
from agentgym.trainers.engines.vllm.nccl import Communicator, Nccl
from agentgym.trainers.engines.vllm.proof import WeightChecksum
from agentgym.trainers.engines.vllm.versions import NCCL_SINCE
from agentgym.trainers.engines.vllm.weights import Published, Source, Tensors, name_with_weights, probe_ids, published
from agentgym.trainers.engines.vllm.wire import ServerFaultError
from agentgym.trainers.models.precision import dtype_for, sent_as, sent_dtype
from agentgym.types import Json, JsonObject

WITHOUT_NCCL = "engine.weight_sync=folder needs none"


class TransferChannel(Protocol):
    """A channel that moves tensors from the trainer to a server."""

    async def check(self, client: VllmClient, timeout_s: float) -> None:
        """Check that the channel can reach a server.

        Raises:
            WrongServerError: it cannot.
        """
        ...

    async def open(self, client: VllmClient, timeout_s: float) -> None:
        """Open the channel to a server that has just started or come back."""
        ...

    async def send(self, client: VllmClient, tensors: Tensors, timeout_s: float, dtype: torch.dtype | None) -> None:
        """Send the tensors to a server on which an update has been started.

        Args:
            dtype: the dtype in which they are sent; None for their own.
        """
        ...

    def drop(self, url: str) -> None:
        """Close the channel to a server; unknown servers are ignored."""
        ...


class TransferSync:
    """Sends all weights, with merged adapters, through a channel.

    They are sent in the servers' dtype if all have the same, rounded as the servers would. The checksum that a server
    returns is a fingerprint of the sent weights, which its workers were told. The pool's proof shows that they are
    loaded.

    Args:
        tensors: returns the trainer's weights by checkpoint name.
        channel: the channel to the servers.
        witness: computes the evidence by which servers are checked.
        are_kept: the tensors stay as they are until the next :meth:`publish`, so that no copy is needed.
    """

    def __init__(
        self,
        tensors: Callable[[], Iterable[tuple[str, Tensor]]],
        channel: TransferChannel,
        witness: WeightChecksum,
        vocab_size: int,
        *,
        are_kept: bool = False,
    ) -> None:
        self._tensors, self._channel, self._witness, self._vocab_size = tensors, channel, witness, vocab_size
        self._are_kept = are_kept
        self._kept: Tensors = ()
        self._dtype: torch.dtype | None = None
        self._published: Published | None = None
        self._opened: dict[str, str] = {}  # by address, the name under which the server ran when it was opened

    def borrow(self, source: Source) -> None:
        self._tensors, self._witness, self._are_kept = source.tensors, source.compute_checksum, True

    def forget(self) -> None:
        self._kept = ()

    def publish(self, version: int, dtypes: Collection[str]) -> Published:
        """Copy the trainer's current weights if they change, because a server may load them after further training."""
        self._keep(dtypes)
        with boundary(EngineError, "summing up weights for vLLM"):
            checksum = fingerprint_of(self._kept)
        evidence = self._witness(probe_ids(version, self._vocab_size), dtypes)
        self._published = published(version, checksum, evidence, self._vocab_size)
        return self._published

    def follow(self, published: Published) -> None:
        """Copy this process's current weights as :meth:`publish` does, if it was not this process that published."""
        if self._published is not published:
            self._keep(published.evidence.sums)
            self._published = published

    def _keep(self, dtypes: Collection[str]) -> None:
        self._kept = ()  # before the next copy is made
        self._dtype = dtype_for(dtypes)
        with boundary(EngineError, "copying weights for vLLM"):
            self._kept = [
                (name, tensor.detach() if self._are_kept else sent_as(tensor.detach(), self._dtype, copy=True))
                for name, tensor in self._tensors()
            ]

    async def check(self, client: VllmClient, timeout_s: float) -> None:
        """Check that a server can take weights in this way."""
        await self._channel.check(client, timeout_s)

    async def install(
        self, client: VllmClient, base_name: str, wanted: Published, timeout_s: float, *, is_paused: bool = False
    ) -> str:
        """Pause the server, send the weights, and resume; after a failure the channel is opened again next time."""
        held = wanted.held
        if await name_with_weights(client, base_name, wanted, timeout_s):
            return base_name
        tensors, dtype = self._kept, self._dtype
        if not tensors:
            raise ServerFaultError("the weights of another version are being gathered")
        if not is_paused:
            await client.post("/pause?mode=wait", {}, timeout_s)
        try:
            await client.rpc("agentgym_forget", {}, timeout_s)  # half an update is no version
            await self._open(client, base_name, timeout_s)
            await client.post("/start_weight_update", {}, timeout_s)
            await self._channel.send(client, tensors, timeout_s, dtype)
            await client.post("/finish_weight_update", {}, timeout_s)
            found = client.same_held(await client.rpc("agentgym_received", asdict(held), timeout_s))
        except BaseException:
            self._opened.pop(client.url, None)
            self._channel.drop(client.url)
            with suppress(EngineError):  # an update that stays begun would refuse the next one
                await client.post("/finish_weight_update", {}, timeout_s)
            raise
        finally:
            if not is_paused:
                with suppress(EngineError):  # if it is gone, there is nothing to resume
                    await client.post("/resume", {}, timeout_s)
        if found != held:
            raise ServerFaultError(f"it holds version {found.version} after taking {wanted.version}")
        return base_name

    def close(self) -> None:
        """Free the copy and close the channels to all servers."""
        for url in list(self._opened):
            self._channel.drop(url)
        self._opened, self._kept = {}, ()

    async def _open(self, client: VllmClient, base_name: str, timeout_s: float) -> None:
        if self._opened.get(client.url) == base_name:
            return
        self._channel.drop(client.url)
        with suppress(EngineError):  # what an earlier trainer opened; without one there may be nothing to shut down
            await client.post("/shutdown_weight_transfer_engine", {}, timeout_s)
        await self._channel.check(client, timeout_s)
        await self._channel.open(client, timeout_s)
        self._opened[client.url] = base_name


class IpcChannel:
    """A channel to servers on the trainer's GPU, which open the tensors in place.

    Handles are pickled, which vLLM accepts only if it was started with ``VLLM_ALLOW_INSECURE_SERIALIZATION=1``, as
    ``agentgym serve-model --weight-transfer ipc`` does.

    Args:
        gpu: the id of the trainer's GPU.
        handle_of: returns a handle that another process can open, and the id of its GPU.
    """

    def __init__(self, gpu: str, handle_of: Callable[[Tensor], tuple[str, tuple[object, ...]]] | None = None) -> None:
        self._gpu, self._handle_of = gpu, handle_of or cuda_handle

    async def check(self, client: VllmClient, timeout_s: float) -> None:
        """Check that the server runs on the trainer's GPU alone."""
        found = [str(worker.get("gpu")) for worker in await client.rpc("agentgym_gpu", {}, timeout_s)]
        if found != [self._gpu]:
            raise WrongServerError(
                f"{client.url} runs on GPU {', '.join(found)}, and engine.weight_sync=ipc reaches GPU {self._gpu} "
                "alone, on which its weights are trained: start it there (CUDA_VISIBLE_DEVICES), or set "
                "engine.weight_sync=nccl"
            )

    async def open(self, client: VllmClient, timeout_s: float) -> None:
        await client.post("/init_weight_transfer_engine", {"init_info": IPC_INIT_INFO}, timeout_s)

    async def send(self, client: VllmClient, tensors: Tensors, timeout_s: float, dtype: torch.dtype | None) -> None:
        sent = [(name, sent_as(tensor, dtype)) for name, tensor in tensors]  # kept until the server has read them
        info = ipc_update_info(sent, [dict([self._handle_of(tensor)]) for _, tensor in sent])
        await client.post("/update_weights", {"update_info": info}, timeout_s)

    def drop(self, url: str) -> None:
        pass


class NcclChannel:
    """A channel to servers on other GPUs, with one communicator for each, so that a lost server affects no other.

    A server that is lost in the middle of a broadcast leaves its peers waiting until their communicators are aborted,
    which vLLM's workers do not offer. So servers are no peers. Where there are many of them, ranks share them out.

    The trainer is rank 0, the server's workers are the next ranks. They join by a unique id that is sent over HTTP,
    which vLLM supports since 0.32, and first run an all-reduce.

    Args:
        nccl: the library, by default torch's own.
    """

    def __init__(self, nccl: Nccl | None = None) -> None:
        self._nccl = nccl
        self._communicators: dict[str, Communicator] = {}

    async def check(self, client: VllmClient, timeout_s: float) -> None:
        """Compare the versions of NCCL, which connects equal ones only."""
        client.check_version(NCCL_SINCE)
        self._nccl = self._nccl or Nccl()
        ours = self._nccl.version()
        for worker in await client.rpc("agentgym_nccl", {}, timeout_s):
            theirs = worker.get("nccl")
            if not is_whole(theirs):
                raise WrongServerError(f"{client.url} cannot use its NCCL: {worker.get('reason')}; {WITHOUT_NCCL}")
            if theirs != ours:
                raise WrongServerError(
                    f"{client.url} has NCCL {_dotted(theirs)} and the trainer {_dotted(ours)}, and NCCL connects equal "
                    f"versions only: install one version of nvidia-nccl in both environments, or {WITHOUT_NCCL}"
                )

    async def open(self, client: VllmClient, timeout_s: float) -> None:
        self._nccl = nccl = self._nccl or Nccl()
        answer = await client.get("/get_world_size", timeout_s)
        num_workers = answer.get("world_size") if isinstance(answer, dict) else None
        if not is_whole(num_workers) or num_workers < 1:
            raise ServerFaultError(f"/get_world_size answered {answer!r}")
        unique_id = nccl.unique_id()
        info = nccl_init_info(unique_id, num_workers)
        communicator = Communicator(nccl, unique_id, num_ranks=1 + num_workers, rank=0)
        self._communicators[client.url] = communicator
        await _both(
            client.post("/init_weight_transfer_engine", {"init_info": info}, timeout_s),
            communicator.meet,
            communicator,
            timeout_s,
        )

    async def send(self, client: VllmClient, tensors: Tensors, timeout_s: float, dtype: torch.dtype | None) -> None:
        communicator = self._communicators[client.url]
        await _both(
            client.post("/update_weights", {"update_info": description_of(tensors, dtype)}, timeout_s),
            lambda: communicator.broadcast(sent_as(tensor, dtype) for _, tensor in tensors),
            communicator,
            timeout_s,
        )

    def drop(self, url: str) -> None:
        communicator = self._communicators.pop(url, None)
        if communicator is not None:
            communicator.abort()


def _dotted(version: int) -> str:
    """Return a version of NCCL as people write it.

    Example:
        >>> _dotted(22809)
        '2.28.9'
    """
    return f"{version // 10_000}.{version % 10_000 // 100}.{version % 100}"


async def _both(
    request: Awaitable[Json], collective: Callable[[], None], communicator: Communicator, timeout_s: float
) -> None:
    """Run both sides of a collective operation, the server's and this process's; stop both if either fails."""
    ours = asyncio.ensure_future(call_in_own_thread(on_this_device(collective)))
    theirs = asyncio.ensure_future(request)
    try:
        # not gather, which forgets that it was cancelled if one of them fails at that moment
        done, pending = await asyncio.wait({ours, theirs}, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        for side in (ours, theirs):
            if side in done:
                side.result()
        if pending:
            raise ServerFaultError(f"NCCL did not end within {timeout_s:g} s")
    finally:
        if not (ours.done() and theirs.done()):
            communicator.abort()  # ends a wait in a collective; a thread that waits for ranks to meet is left behind
            ours.cancel()
            theirs.cancel()
            await asyncio.gather(ours, theirs, return_exceptions=True)


def description_of(tensors: Tensors, dtype: torch.dtype | None = None) -> dict[str, Json]:
    """Return the description of tensors that a server needs before it receives them.

    Example:
        >>> description_of([("w", torch.zeros(2, 3))], torch.bfloat16)
        {'names': ['w'], 'dtype_names': ['bfloat16'], 'shapes': [[2, 3]]}
    """
    return {
        "names": [name for name, _ in tensors],
        "dtype_names": [str(sent_dtype(tensor, dtype)).removeprefix("torch.") for _, tensor in tensors],
        "shapes": [list(tensor.shape) for _, tensor in tensors],
    }


IPC_INIT_INFO: JsonObject = {}
"""Nothing: tensors are not packed by default, and 0.26 knows no field."""


def ipc_update_info(tensors: Tensors, handles: Sequence[dict[str, tuple[object, ...]]]) -> JsonObject:
    """Return the request body with which a server opens tensors: one handle each, by the id of the GPU."""
    return description_of(tensors) | {"ipc_handles_pickled": base64.b64encode(pickle.dumps(list(handles))).decode()}


def nccl_init_info(unique_id: bytes, num_workers: int) -> JsonObject:
    """Return the request body with which a server's workers join this process, which is rank 0."""
    return {
        "rank_offset": 1,
        "world_size": 1 + num_workers,
        "nccl_unique_id_b64": base64.b64encode(unique_id).decode(),
    }


def fingerprint_of(tensors: Tensors) -> str:
    """Return a SHA-256 over names, shapes and some sums of each tensor, in hexadecimal, without copying from the GPU.

    Example:
        >>> one = fingerprint_of([("w", torch.ones(3))])
        >>> one == fingerprint_of([("w", torch.ones(3))]), one == fingerprint_of([("w", torch.zeros(3))])
        (True, False)
    """
    digest = hashlib.sha256()
    for name, tensor in tensors:
        matrix = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.ndim else 1)
        sums = [_by_place(matrix.sum(side, dtype=torch.float64)) for side in (0, 1)]
        digest.update(f"{name} {tuple(tensor.shape)} {sums}".encode())
    return digest.hexdigest()


def _by_place(values: Tensor) -> float:
    """Return a weighted sum, which changes if two values are exchanged."""
    places = torch.arange(1, len(values) + 1, device=values.device, dtype=values.dtype)
    return (values * places).sum().item()


def cuda_handle(tensor: Tensor) -> tuple[str, tuple[object, ...]]:
    """Return the GPU's id and the arguments of ``rebuild_cuda_tensor``.

    Raises:
        EngineError: the tensor is not on a GPU.
    """
    if not tensor.is_cuda:
        raise EngineError("engine.weight_sync=ipc shares memory of a GPU, and the trainer's model is on the CPU")
    handle: tuple[object, ...] = reduce_tensor(tensor)[1]  # type: ignore[no-untyped-call]
    return gpu_id(tensor.device), handle


def gpu_id(device: torch.device) -> str:
    """Return the id of a GPU, which is the same in all processes."""
    return str(torch.cuda.get_device_properties(device).uuid)
