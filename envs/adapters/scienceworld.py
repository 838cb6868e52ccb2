"""``agentgym/ScienceWorld-v0``: thirty kinds of elementary science experiments in a text world, on ScienceWorld's
engine.

Source: "ScienceWorld: Is your Agent Smarter than a 5th Grader?"; allenai/ScienceWorld, Apache-2.0. The engine is a Java
program in the package; it needs a Java runtime.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentgym.envs.adapters.engine_env import EngineEnv
from agentgym.envs.adapters.worker_process import WorkerProcess
from agentgym.errors import UsageError, require_extra, require_known
from agentgym.types import Task

_WORKER = "agentgym.envs.adapters.scienceworld_worker"
_SPLITS: Mapping[str, str] = {"train": "train", "valid": "dev", "test": "test"}
_LIST_TIMEOUT_S = 300.0


def why_not() -> str:
    """Return an empty text if there is a Java runtime, else what to do."""
    return "" if shutil.which("java") else "its engine needs Java: apt-get install default-jre-headless"


class ScienceWorldEnv(EngineEnv):
    """Do an experiment in a house full of objects. The reward is the increase of the score, with 100 as 1.0.

    A task is an experiment and one of its variations; the splits are ScienceWorld's. A wrong final answer sets the
    score to -100, as in the engine, and ends the episode. The engine's gold path is the oracle while the episode
    follows it.

    Args:
        experiments: names of experiments, such as ``boil`` or ``find-living-thing``; by default all thirty.
        simplifications: simplifications of the engine, separated by commas, such as ``easy``.
        max_turns, interface, step_timeout_s, load_timeout_s: see :class:`EngineEnv`.

    Raises:
        MissingExtraError: ScienceWorld is not installed.
        UsageError: there is no Java runtime, or no such experiment.
    """

    worker_module: ClassVar[str] = _WORKER

    def __init__(
        self,
        *,
        experiments: str | Sequence[str] = (),
        simplifications: str = "easy",
        max_turns: int = 100,
        **kwargs: Any,
    ) -> None:
        require_extra("agentgym/ScienceWorld-v0", "scienceworld", "scienceworld")
        if shutil.which("java") is None:
            raise UsageError("ScienceWorld's engine needs a Java runtime: apt-get install default-jre-headless")
        self._experiments = (experiments,) if isinstance(experiments, str) else tuple(experiments)
        self._simplifications = simplifications
        super().__init__(max_turns=max_turns, **kwargs)

    @property
    def task_type(self) -> str:
        """Name of the experiment."""
        return str(self.task.data["experiment"])

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the variations of a split, grouped by experiment."""
        require_known("split", split, _SPLITS)
        known = _variations()
        for name in self._experiments:
            require_known("experiment of ScienceWorld", name, known)
        return _tasks(self._experiments or tuple(known), split)

    def request_of(self, task: Task) -> Mapping[str, Any]:
        try:
            return {
                "experiment": task.data["experiment"],
                "variation": task.data["variation"],
                "simplifications": self._simplifications,
            }
        except KeyError:
            raise UsageError(f"task {task.id!r} names no experiment and variation; take tasks from tasks()") from None


@functools.cache
def _variations() -> Mapping[str, Mapping[str, Sequence[int]]]:
    """Return the variation numbers of each experiment by split. Each process asks the engine once."""
    worker = WorkerProcess(_WORKER)
    try:
        return dict(worker.call(_LIST_TIMEOUT_S, op="variations"))
    finally:
        worker.close()


@functools.cache
def _tasks(experiments: Sequence[str], split: str) -> tuple[Task, ...]:
    return tuple(
        Task(id=f"{name}-{number}", split=split, seed=0, data={"experiment": name, "variation": number})
        for name in experiments
        for number in _variations()[name][_SPLITS[split]]
    )
