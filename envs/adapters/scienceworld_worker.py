"""The process that runs ScienceWorld's engine for one environment; see :mod:`agentgym.envs.adapters.scienceworld`.

The engine is a Java program that ends with this process. A state key consists of the visible room, the inventory and
the progress towards the goal. The engine reports no more without a step, so the key does not cover other rooms.

Commands go to the Java object, not through the package's ``step``: that one also fetches all commands that are possible
now, a thousand strings one by one, which takes several times as long as the step.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from typing import Any

from agentgym.envs.adapters.worker_main import serve

# each environment has an engine of its own, so that threads for collecting garbage would be too many
_OPTIONS = "-Xmx512m -XX:+UseSerialGC -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"
_REFUSALS = ("No known action matches", "Ambiguous request", "Unknown action")


class Laboratory:
    """The engine with at most one experiment loaded."""

    def __init__(self) -> None:
        os.environ.setdefault("JAVA_TOOL_OPTIONS", _OPTIONS)
        module: Any = importlib.import_module("scienceworld")
        self._env = module.ScienceWorldEnv("")
        self._score = 0.0
        self._is_over = False
        self._gold: list[str] | None = None
        self._gold_paths: dict[tuple[str, int, str], tuple[str, ...]] = {}
        self._key = ""

    def variations(self) -> dict[str, Any]:
        """Return the variation numbers of each experiment by the engine's splits."""
        found = {}
        for name in self._env.get_task_names():
            # computed by the engine's rule, since the engine reports splits only for a loaded experiment, and loading
            # takes long
            num_variations = self._env.get_max_variations(name)
            quarter = num_variations // 4
            ends = {"train": (0, 2 * quarter), "dev": (2 * quarter, 3 * quarter), "test": (3 * quarter, num_variations)}
            found[name] = {split: list(range(*span)) for split, span in ends.items()}
        return found

    def start(self, experiment: str, variation: int, simplifications: str) -> dict[str, Any]:
        """Begin an experiment."""
        if experiment not in self._env.get_task_names():
            return {"refused": f"there is no experiment {experiment!r}"}
        wanted = experiment, variation, simplifications
        # The engine loads an experiment twice to find its gold path. The package's reset loads it once more, which
        # changes nothing after a load.
        self._env.load(*wanted, generateGoldPath=wanted not in self._gold_paths)
        if wanted not in self._gold_paths:
            self._gold_paths[wanted] = tuple(self._env.get_gold_action_sequence())
        said = self._execute("look around")  # as the package does
        self._score, self._is_over = 0.0, False
        self._gold = list(self._gold_paths[wanted])
        return self._seen(f"{self._env.taskdescription().strip()}\n\n{said}", is_valid=True)

    def step(self, command: str) -> dict[str, Any]:
        """Execute one command."""
        before, command = self._key, " ".join(command.split())
        said = self._execute(command)
        if self._gold and self._gold[0] == command:
            del self._gold[0]
        elif self._key != before:
            self._gold = None
        return self._seen(said, is_valid=not said.startswith(_REFUSALS))

    def admissible(self) -> dict[str, Any]:
        """Return all commands that the engine would accept in the current state."""
        return {"commands": sorted(set(self._env.get_valid_action_object_combinations()))}

    def _seen(self, said: str, is_valid: bool) -> dict[str, Any]:
        return {
            "said": said,
            "score": self._score / 100,
            "is_over": self._is_over,
            "is_valid": is_valid,
            "key": self._key,
            "plan": self._gold,
        }

    def _execute(self, command: str) -> str:
        said: str = self._env.server.step(command)
        self._score = float(round(100 * self._env.server.getScore()))
        self._is_over = self._score < 0 or bool(self._env.server.getCompleted())
        self._key = self._now()
        return said

    def _now(self) -> str:
        env = self._env
        texts = (env.taskdescription(), env.look(), env.inventory(), env.get_goal_progress())
        return hashlib.blake2b("\n\n".join(texts).encode(), digest_size=16).hexdigest()


if __name__ == "__main__":
    serve(Laboratory)
