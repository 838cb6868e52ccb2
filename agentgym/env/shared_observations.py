"""Observations of ``AsyncVectorEnv``'s workers, which make ``make_vec(..., vectorization_mode="async")`` work as it is.

Gymnasium requires shared memory of each kind of space, to which its workers write. Messages have no fixed size, so each
worker writes to a file instead.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

from agentgym.env.spaces import MessageSpace
from agentgym.types import Observation


class SharedObservations(Sequence[Observation]):
    """The latest observation of each worker, read from its file on access. Copies are plain tuples."""

    def __init__(self, num_envs: int) -> None:
        self._folder, self._num_envs = Path(tempfile.mkdtemp(prefix="agentgym-observations-")), num_envs
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def write(self, index: int, observation: Observation) -> None:
        """Replace a worker's observation."""
        partial = self._folder / f"{index}.partial"
        partial.write_bytes(pickle.dumps(observation))
        os.replace(partial, self._folder / str(index))

    @overload
    def __getitem__(self, index: int) -> Observation: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Observation]: ...
    def __getitem__(self, index: int | slice) -> Observation | Sequence[Observation]:
        if isinstance(index, slice):
            return tuple(self)[index]
        path = self._folder / str(range(self._num_envs)[index])
        observation: Observation = pickle.loads(path.read_bytes()) if path.is_file() else ()
        return observation

    def __len__(self) -> int:
        return self._num_envs

    def __deepcopy__(self, _: dict[int, object]) -> tuple[Observation, ...]:
        return tuple(self)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # only in the parent; a forked worker has a copy of the object
        shutil.rmtree(folder, ignore_errors=True)


@create_shared_memory.register(MessageSpace)
def _create(space: MessageSpace, n: int = 1, ctx: object = None) -> SharedObservations:
    return SharedObservations(n)


@read_from_shared_memory.register(MessageSpace)
def _read(space: MessageSpace, shared_memory: SharedObservations, n: int = 1) -> SharedObservations:
    return shared_memory


@write_to_shared_memory.register(MessageSpace)
def _write(space: MessageSpace, index: int, value: Observation, shared_memory: SharedObservations) -> None:
    shared_memory.write(index, value)
