"""The NCCL calls for a broadcast to another process's GPU, through ctypes.

torch offers NCCL only within its process groups, to which vLLM's workers do not belong. The library is the one that
comes with torch. Interface: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
from collections.abc import Iterable

import torch
from torch import Tensor

from agentgym.errors import EngineError

_NUM_ID_BYTES = 128
_TYPES = {  # ncclDataType_t
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
_SUM = 0  # ncclRedOp_t


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * _NUM_ID_BYTES),)


class Nccl:
    """The NCCL library.

    Args:
        path: path of the library, by default torch's own.

    Raises:
        EngineError: the library does not exist.
    """

    def __init__(self, path: str = "libnccl.so.2") -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise EngineError(
                f"engine.weight_sync=nccl needs NCCL, which a torch build for CUDA brings; here: {error}"
            ) from error
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for name, types in {
            "ncclGetVersion": [ctypes.POINTER(number)],
            "ncclGetUniqueId": [ctypes.POINTER(_UniqueId)],
            "ncclCommInitRank": [ctypes.POINTER(pointer), number, _UniqueId, number],
            "ncclAllReduce": [pointer, pointer, size, number, number, pointer, pointer],
            "ncclBroadcast": [pointer, pointer, size, number, number, pointer, pointer],
            "ncclCommAbort": [pointer],
        }.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = types, ctypes.c_int
        self._library.ncclGetErrorString.argtypes = [ctypes.c_int]
        self._library.ncclGetErrorString.restype = ctypes.c_char_p

    def version(self) -> int:
        """Return the version, such as 22809 for 2.28.9. The ranks of a communicator must have the same."""
        found = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(found))
        return found.value

    def unique_id(self) -> bytes:
        """Return a unique id, which all ranks of a communicator must share."""
        made = _UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the library.

        Raises:
            EngineError: the call failed.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            raise EngineError(f"{name} failed: {self._library.ncclGetErrorString(code).decode()}")

    def join(self, unique_id: bytes, num_ranks: int, rank: int) -> ctypes.c_void_p:
        """Return a communicator, as soon as all ranks have joined."""
        made = ctypes.c_void_p()
        self.call("ncclCommInitRank", ctypes.byref(made), num_ranks, _UniqueId.from_buffer_copy(unique_id), rank)
        return made


class Communicator:
    """One rank of a group. :meth:`meet` and :meth:`broadcast` wait for the others; :meth:`abort` ends the wait."""

    def __init__(self, nccl: Nccl, unique_id: bytes, *, num_ranks: int, rank: int) -> None:
        self._nccl, self._unique_id, self._num_ranks, self._rank = nccl, unique_id, num_ranks, rank
        self._handle: ctypes.c_void_p | None = None
        self._lock = threading.Lock()
        self._is_aborted = False

    def meet(self) -> None:
        """Join the communicator and take part in a first all-reduce, as vLLM's workers do."""
        handle = self._nccl.join(self._unique_id, self._num_ranks, self._rank)
        with self._lock:
            self._handle = handle
            is_late = self._is_aborted
        if is_late:
            self.abort()
            raise EngineError("NCCL was given up while the ranks met")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        number = torch.zeros(1, device=device)
        self._collective("ncclAllReduce", number, _SUM)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast tensors from this rank one after the other, each made when its turn comes; return when they are
        sent.
        """
        for tensor in tensors:
            self._collective("ncclBroadcast", tensor.contiguous(), self._rank)

    def abort(self) -> None:
        """Free the communicator and end all waits; a second call does nothing."""
        with self._lock:
            handle, self._handle, self._is_aborted = self._handle, None, True
        if handle is not None:
            self._nccl.call("ncclCommAbort", handle)

    def _collective(self, name: str, tensor: Tensor, argument: int) -> None:
        if self._handle is None:
            raise EngineError("the NCCL communicator was given up")
        if tensor.dtype not in _TYPES:
            raise EngineError(f"NCCL does not send {tensor.dtype}")
        address, stream = ctypes.c_void_p(tensor.data_ptr()), 0
        if tensor.is_cuda:
            stream = torch.cuda.current_stream(tensor.device).cuda_stream
        self._nccl.call(
            name,
            address,
            address,
            tensor.numel(),
            _TYPES[tensor.dtype],
            argument,
            self._handle,
            ctypes.c_void_p(stream),
        )
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()
