"""One rank of the trainer, in a process that Ray started."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import socket
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from agentgym.errors import AgentGymError, InfrastructureError, RunStoppedError, error_text
from agentgym.ports import free_port
from agentgym.trainers.config.cluster import SERVERS_NAME

if TYPE_CHECKING:
    from agentgym.trainers.run.folder import TrainResult

NUM_THREADS = 3
"""Threads of a rank's actor: one trains, one returns output, one stops the training."""
_SEEN_AFTER_S, _LOOK_S, _MOST_SILENT_S = 10.0, 0.1, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The process and address of a started rank."""

    process: str
    """Description for messages, as in "process 4711 on node-2, GPU 0"."""
    address: str
    """HOST:PORT at which other ranks can reach it."""
    sees_folder: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """The parameters of a start, which are equal for all ranks except for ``rank``."""

    config: Mapping[str, Any]
    """The configuration as plain dicts: reading it imports the user's own components, as a command does."""
    run_dir: str
    resume: bool
    rank: int
    num_ranks: int
    num_restarts: int
    meeting_point: str
    """HOST:PORT of the first rank."""
    servers_name: str
    """Name of the places of vLLM servers, the same for all starts of a run."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that torchrun would set for this rank."""
        host, _, port = self.meeting_point.rpartition(":")
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.num_ranks),
            "LOCAL_RANK": "0",  # of the GPUs that it sees, which are its own
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": str(self.num_restarts),
            SERVERS_NAME: self.servers_name,
        }


class Screen(io.TextIOBase):
    """A text stream that buffers its text until :meth:`take`.

    Args:
        is_terminal: True if the text is finally shown on a terminal, so that progress bars are useful.
    """

    encoding = "utf-8"

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal, self._pieces = is_terminal, queue.SimpleQueue[str]()

    def write(self, text: str, /) -> int:
        """Append a piece of text."""
        self._pieces.put(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: text is available at once."""

    def isatty(self) -> bool:
        """Return True if the text is finally shown on a terminal."""
        return self._is_terminal

    def take(self) -> str:
        """Return the output since the last call."""
        return "".join(self._pieces.get() for _ in range(self._pieces.qsize()))


class TrainerRank:
    """An actor that is a rank of a run. It has several threads, so that it answers while it trains.

    Args:
        folder: base folder of relative paths.
        is_shown: True if the command that started the run prints this rank's standard error.
        terminal: environment variables that describe the command's terminal; empty without a terminal.
        environment: further environment variables of the run.
    """

    def __init__(
        self, folder: str, is_shown: bool, terminal: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        of_gpu = f", GPU {gpus[0]}" if gpus else ""
        self._process = f"process {os.getpid()} on {socket.gethostname()}{of_gpu}"
        os.environ.update({**terminal, **environment})
        if os.path.isdir(folder):  # a machine without it has environments of packages alone
            os.chdir(folder)
        self._screen = Screen(bool(terminal))
        if is_shown:
            sys.stderr = self._screen
        self._cancel: Callable[[], object] = lambda: None

    def begin(self, mark: str) -> RankPlace:
        """Return the place of this rank, and if it can access the run's folder.

        Args:
            mark: a file in the run's folder, to look for.
        """
        give_up = time.monotonic() + _SEEN_AFTER_S  # a network's file system may show it late
        while not os.path.exists(mark) and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
        return RankPlace(
            process=self._process,
            address=f"{ray.util.get_node_ip_address()}:{free_port('')}",
            sees_folder=os.path.exists(mark),
        )

    def train(self, start: RankStart) -> TrainResult:
        """Train as this rank.

        Raises:
            AgentGymError: the run failed; other errors are raised as ``InfrastructureError``.
        """
        os.environ.update(start.environment())
        from agentgym.trainers.config.overrides import from_dict  # only now: torch takes seconds
        from agentgym.trainers.rank import train_rank

        try:
            return train_rank(from_dict(start.config), Path(start.run_dir), resume=start.resume, run=self._run)
        except asyncio.CancelledError:
            raise RunStoppedError("interrupted") from None
        except AgentGymError:
            raise
        except Exception as error:
            traceback.print_exc()  # the command that started the run gets the error alone
            raise InfrastructureError(f"trainer rank {start.rank} failed: {error_text(error)}") from None

    def said(self) -> str:
        """Return the output on standard error since the last call; wait a little if there is none."""
        give_up = time.monotonic() + _MOST_SILENT_S
        while not (text := self._screen.take()) and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
        return text

    def stop(self) -> None:
        """Interrupt the training as Ctrl-C does, so that it closes its files."""
        self._cancel()

    def _run(self, work: Coroutine[Any, Any, TrainResult]) -> TrainResult:
        async def cancellable() -> TrainResult:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            return await work

        return asyncio.run(cancellable())
