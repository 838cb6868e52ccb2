"""A tree of tensors in a folder (torch.distributed.checkpoint): each rank writes and reads its own shards.

A tree is the result of a ``state_dict`` method: dicts, lists and tuples of tensors and plain values. Any number of
ranks can read a folder that another number wrote, because torch reshards the tensors. No rank ever holds a whole tensor
of a sharded model.
"""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from agentgym.errors import CorruptDataError, RunHaltedError, UsageError, error_text
from agentgym.trainers.distributed.hashes import write_hashes
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.types import StateDict

Held = TypeVar("Held")

OUTLINE = "outline.pt"
"""File of the tree without its tensors, which the first rank writes."""
METADATA = ".metadata"
"""torch's file about the tensors of all ranks."""
_PROBE_BYTES = 1 << 20
_METADATA_NAMES = {
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex"),
        *("StorageMeta", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"},
    "pathlib": {"Path", "PosixPath"},
}
"""The only classes that the metadata of a folder may contain, by module."""
_MOVED = {"pathlib._local": "pathlib"}
"""Modules that only some releases of Python have (3.13), and where others have the same classes."""


def save_tree(folder: Path, tree: object, plain: Mapping[str, object], ranks: Ranks) -> None:
    """Write a tree into an empty folder. All ranks must call this.

    Args:
        folder: a folder on storage that all ranks share.
        tree: the tree; its tensors are sharded over the ranks, or equal on all of them.
        plain: further values and small tensors, which only the first rank writes.

    Raises:
        UsageError: the ranks do not share the folder.
        RunHaltedError: a rank could not write its part.
    """
    writer = FileSystemWriter(folder)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*assuming the intent is to save in a single process")
            metadata = save(
                dict(tensors_of(tree)),
                storage_writer=writer,
                process_group=ranks.waiting,
                no_dist=ranks.count == 1,
            )
    except CheckpointException as error:
        _raise_interrupt(error)
        raise _not_written(folder, _refusal(folder) or _reason(error)) from error
    if ranks.is_main:
        _check_shared(folder, metadata)
        _write_outline(folder, tree, plain)
    write_hashes(folder, _written_by(ranks, folder), ranks)


def _written_by(ranks: Ranks, folder: Path) -> list[str]:
    """Return the names of a rank's files: its tensors, and on the first rank the files about all tensors, too."""
    tensors = [path.name for path in folder.glob(f"__{ranks.rank}_*.distcp")]
    return [*tensors, METADATA, OUTLINE] if ranks.is_main else tensors


def _check_shared(folder: Path, metadata: Metadata) -> None:
    """Raise an error if the files of other ranks cannot be seen from here."""
    missing = sorted({info.relative_path for info in (metadata.storage_data or {}).values()} - {*os.listdir(folder)})
    if missing:
        raise UsageError(
            f"{folder} lacks {', '.join(missing)}, which other ranks wrote: put the run's folder (--run-dir) "
            "on storage that all machines share"
        )


def _write_outline(folder: Path, tree: object, plain: Mapping[str, object]) -> None:
    held = io.BytesIO()  # torch hides the system's error if it writes the file itself
    torch.save({"tree": _map_tensors(tree, lambda _, tensor: _outlined(tensor)), "plain": dict(plain)}, held)
    try:
        with open(folder / OUTLINE, "wb") as out:
            out.write(held.getbuffer())
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise _not_written(folder, error.strerror or str(error)) from error


def held_in_memory(tree: Held) -> Held:
    """Return a copy of a tree with its tensors in this machine's memory, which later training steps do not change.

    Tensors that share memory also share it in the copy. Each rank copies its own shards.
    """
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
    )
    copied: Any = stager.stage(tree)  # type: ignore[arg-type]  # any tree, though its signature says a dict
    stager.close()
    return copied  # type: ignore[no-any-return]


def _not_written(folder: Path, reason: str) -> RunHaltedError:
    return RunHaltedError(f"{folder} could not be written: {reason}; see to the disk and resume the run")


def _refusal(folder: Path) -> str:
    """Return why the disk takes no more, empty if it does: of a full disk torch says `unexpected pos 704 vs 598`."""
    probe = folder / f"probe-{os.getpid()}"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with suppress(OSError):
            probe.unlink()
    return ""


def read_outline(folder: Path) -> tuple[StateDict, StateDict]:
    """Return the tree with tensors on the meta device, and the values that the first rank added."""
    found = torch.load(folder / OUTLINE, map_location="cpu", weights_only=True)
    return found["tree"], found["plain"]


def load_tree(folder: Path, outline: object, targets: Mapping[str, Tensor], ranks: Ranks) -> Any:
    """Return the tree with its tensors. All ranks must call this.

    Args:
        outline: the result of :func:`read_outline`, or a part of it under a new root.
        targets: tensors to fill in place, by path (:func:`tensors_of`); they may be sharded. Other tensors are
            created unsharded on the CPU.

    Raises:
        CorruptDataError: the folder cannot be read, or a target has another shape than the tensor.
    """
    wanted: dict[str, Tensor] = {}
    for path, tensor in tensors_of(outline):
        target = targets.get(path)
        if target is not None and target.shape != tensor.shape:
            raise CorruptDataError(
                f"{folder} holds {path} of shape {tuple(tensor.shape)}, this run's has {tuple(target.shape)}; resume "
                "with the run's own config"
            )
        wanted[path] = torch.empty_like(tensor, device="cpu") if target is None else target.detach()
    if wanted:
        reader = _Reader(folder)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process")
                load(
                    wanted,
                    storage_reader=reader,
                    process_group=ranks.waiting,
                    no_dist=ranks.count == 1,
                )
        except CheckpointException as error:
            _raise_interrupt(error)
            raise CorruptDataError(f"{folder}: {reader.refusal or _reason(error)}") from error
    return _map_tensors(outline, lambda path, _: wanted[path])


def tensors_of(tree: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Return the tensors of a tree with their paths, keys joined by ``/``.

    Example:
        >>> [path for path, _ in tensors_of({"state": {0: {"step": torch.zeros(1)}}, "lr": 0.1})]
        ['state/0/step']
    """
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from tensors_of(value, f"{path}/{key}" if path else str(key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from tensors_of(value, f"{path}/{index}" if path else str(index))


def _map_tensors(tree: object, change: Callable[[str, Tensor], Tensor], path: str = "") -> object:
    if isinstance(tree, Tensor):
        return change(path, tree)
    if isinstance(tree, Mapping):
        return {key: _map_tensors(v, change, f"{path}/{key}" if path else str(key)) for key, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_map_tensors(v, change, f"{path}/{i}" if path else str(i)) for i, v in enumerate(tree))
    return tree


def _outlined(tensor: Tensor) -> Tensor:
    """Return a tensor on the meta device with the same dtype and the shape of the unsharded tensor."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _raise_interrupt(error: CheckpointException) -> None:
    """Raise the ``KeyboardInterrupt`` of a rank, which torch reports as a failure of the disk."""
    for failure, _ in error.failures.values():
        if isinstance(failure, KeyboardInterrupt):
            raise failure from None


def _reason(error: CheckpointException) -> str:
    """Return the first rank's failure in one line; torch's own message has the stack traces of all ranks."""
    failure, _ = next(iter(error.failures.values()))
    return f"{type(failure).__name__}: {str(failure).strip().partition(chr(10))[0]}"


class _Reader(FileSystemReader):
    """An unpickler for the folder's metadata that cannot run code from the file, as plain unpickling could.

    Attributes:
        refusal: why the metadata were not read, which some releases of torch (2.9) hide behind an assertion.
    """

    refusal: str = ""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        try:
            with open(Path(self.path) / METADATA, "rb") as file:
                metadata: Metadata = _MetadataUnpickler(file).load()
        except Exception as error:
            self.refusal = error_text(error)
            raise
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("builtins", "getattr"):
            return _member
        module = _MOVED.get(module, module)
        if name not in _METADATA_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"its metadata names {module}.{name}, which no checkpoint holds")
        return super().find_class(module, name)


def _member(enumeration: object, name: object) -> Enum:
    """Return a member of an enumeration, which Python 3.11.0 to 3.11.3 pickle as a call of ``getattr``."""
    if isinstance(enumeration, type) and issubclass(enumeration, Enum) and isinstance(name, str):
        with suppress(KeyError):
            return enumeration[name]
    raise pickle.UnpicklingError(f"its metadata call getattr for {name!r}, which no checkpoint holds")
