"""The process that runs ALFWorld's engine for one environment; see :mod:`agentgym.envs.adapters.alfworld`.

The engine keeps its state in a C++ library, allows one game per process, and prints to standard output. It therefore
runs in a separate process. Requests: ``start`` (a game's path), ``step`` (a command), ``plan``. Engine and game files
are not modified. Only the translation of a game's PDDL, which takes most of the time of a restart, is cached.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from typing import Any

from agentgym.envs.adapters.worker_main import serve

BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"
NOT_STATE = frozenset({"checked", "examined", "wasinreceptacle"})
"""Predicates about past actions, which are not part of the state."""

_NUM_TRANSLATIONS = 16  # two entries per game


class Game:
    """The engine with at most one game loaded."""

    def __init__(self) -> None:
        downward: Any = importlib.import_module("fast_downward")
        translate = downward.pddl2sas

        @functools.lru_cache(_NUM_TRANSLATIONS)
        def remembered(domain: str, problem: str, verbose: bool, optimize: bool) -> Any:
            return translate(domain, problem, verbose=verbose, optimize=optimize)

        def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
            return remembered(domain, problem, verbose, optimize)

        downward.pddl2sas = pddl2sas
        textworld: Any = importlib.import_module("textworld")
        engine: Any = importlib.import_module("textworld.envs.pddl.pddl")
        wrappers: Any = importlib.import_module("alfworld.agents.environment.alfred_tw_env")
        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._env = wrappers.AlfredDemangler(engine.PddlEnv(infos), shuffle=False)
        self._path = ""
        self._num_loads = 0
        self._key_head = ""
        self._fluents: frozenset[str] = frozenset()

    def start(self, path: str) -> dict[str, Any]:
        """Begin a game, and load it unless it is the last one."""
        if path != self._path:
            self._path = ""
            self._env.load(path)
            self._path = path
            self._num_loads += 1
        state = self._env.reset()
        task = self._env._pddl_state.task
        self._fluents = frozenset(
            effect.literal.predicate for action in task.actions for effect in action.effects
        ).difference(NOT_STATE)
        said = str(state.feedback).removeprefix(BANNER)
        self._key_head = f"{said.rpartition(chr(10))[2]} | {self._rest_of_world(state)}"
        walkthrough = self._env.unwrapped.walkthrough or []
        return {**self._seen(state, said), "walkthrough": walkthrough, "num_loads": self._num_loads}

    def step(self, command: str) -> dict[str, Any]:
        """Execute one command."""
        state, _, _ = self._env.step(command)
        return self._seen(state, str(state.feedback))

    def plan(self) -> dict[str, Any]:
        """Return the planner's commands from the current state to the goal; empty if it finds none."""
        return {"plan": self._env._pddl_state.replan(self._env._entity_infos)}

    def _seen(self, state: Any, said: str) -> dict[str, Any]:
        facts = sorted(self._as_text(fact) for fact in state["_facts"] if fact.name in self._fluents)
        return {
            "said": said,
            "won": bool(state["won"]),
            "admissible": state["admissible_commands"],
            "key": f"{self._key_head} | {'; '.join(facts)}",
        }

    def _rest_of_world(self, state: Any) -> str:
        """Return a digest of the facts that no action changes."""
        facts = sorted(
            self._as_text(fact)
            for fact in state["_facts"]
            if fact.name not in self._fluents | NOT_STATE and not fact.name.startswith(("not_", "new-axiom@"))
        )
        return hashlib.blake2b("\n".join(facts).encode(), digest_size=8).hexdigest()

    def _as_text(self, fact: Any) -> str:
        names = (self._env._entity_infos[variable.name].name.strip() for variable in fact.arguments)
        return f"{fact.name}({', '.join(names)})"


if __name__ == "__main__":
    serve(Game)
