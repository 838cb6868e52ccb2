"""The process that makes and runs TextWorld's games for one environment; see :mod:`agentgym.envs.adapters.textworld`.

The interpreter of the games is a C library that allows one game per process. A state key consists of the game's facts:
places and states of all objects, without moves, score or history.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from agentgym.envs.adapters.worker_main import serve

_STATUS_LINE = re.compile(r"\n>\s+-= [^\n]*$")
_OF_THE_INTERPRETER = frozenset(
    {"quit", "q", "save", "restore", "restart", "undo", "script", "transcript", "unscript", "verify", "again", "g"}
)
"""Commands of the interpreter itself, which would save, restore or end the game."""
_SEPARATOR = re.compile(r"\.|(?:,|\band\b)?\s*\bthen\b", re.IGNORECASE)
"""The words by which the interpreter parts the commands of a line."""
_NO_VERB = "That's not a verb I recognise."
_REFUSALS = ("You can't", "That's not", "I didn't", "You must", "That doesn't", "This verb", "There is no", "What do")


class Game:
    """The interpreter with at most one game loaded."""

    def __init__(self) -> None:
        self._textworld: Any = importlib.import_module("textworld")
        self._env: Any = None
        self._state: Any = None
        self._path: Path | None = None

    def start(self, game: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
        """Begin the game of a seed, after generating it if it is not cached."""
        path = self._made(game, settings, seed)
        if path != self._path:
            if self._env is not None:
                self._env.close()
            infos = self._textworld.EnvInfos(
                admissible_commands=True, policy_commands=True, won=True, lost=True, facts=True, max_score=True,
                objective=True, score=True,
            )  # fmt: skip
            self._env, self._path = self._textworld.start(str(path), request_infos=infos), path
        self._state = self._env.reset()
        return self._seen(self._said(), is_valid=True)

    def step(self, command: str) -> dict[str, Any]:
        """Execute one command, or several in a row ("open box then take key"), until one is refused.

        TextWorld follows its quests by one event a step, and loses points of a line with two.
        """
        answers: list[dict[str, Any]] = []
        for one in filter(str.strip, _SEPARATOR.split(command)):
            answers.append(self._execute(one))
            if answers[-1]["is_over"] or not answers[-1]["is_valid"]:
                break
        if not answers:
            return self._seen(_NO_VERB, is_valid=False)
        return {**answers[-1], "said": "\n\n".join(answer["said"] for answer in answers)}

    def _execute(self, command: str) -> dict[str, Any]:
        before, words = self._key(), command.split()
        if words[0].lower() in _OF_THE_INTERPRETER:
            return self._seen(_NO_VERB, is_valid=False)
        self._state, _, _ = self._env.step(" ".join(words))
        said = self._said()
        return self._seen(said, is_valid=self._key() != before or not said.startswith(_REFUSALS))

    def admissible(self) -> dict[str, Any]:
        """Return the commands that the game reports as possible."""
        return {"commands": sorted(self._state.admissible_commands)}

    def _seen(self, said: str, is_valid: bool) -> dict[str, Any]:
        state = self._state
        return {
            "said": said,
            "score": (state.score or 0) / state.max_score if state.max_score else float(state.won),
            "is_over": bool(state.won or state.lost),
            "is_valid": is_valid,
            "key": self._key(),
            "plan": list(state.policy_commands or ()),
        }

    def _said(self) -> str:
        """Return the game's text without its title and the status line with room and score."""
        said = str(self._state.feedback).rpartition("$$$$$$$")[2]
        return re.sub(r"\n{3,}", "\n\n", _STATUS_LINE.sub("", said.rstrip())).removesuffix(">").strip()

    def _key(self) -> str:
        facts = "\n".join(sorted(str(fact) for fact in self._state.facts))
        score = self._state.score
        return f"{self._state.objective} | {hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()} | {score}"

    def _made(self, game: str, settings: dict[str, Any], seed: int) -> Path:
        name = hashlib.blake2b(json.dumps([game, settings, seed], sort_keys=True).encode(), digest_size=12).hexdigest()
        folder = Path(tempfile.gettempdir()) / f"agentgym-textworld-{os.getuid()}-{self._textworld.__version__}"
        kept = folder / name / "game.z8"
        if not kept.is_file():
            folder.mkdir(exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=folder) as making:
                self._make(game, settings, seed, Path(making) / "game.z8")
                if not kept.parent.exists():  # another process may have generated it first
                    try:
                        os.rename(making, kept.parent)
                        os.mkdir(making)  # so that TemporaryDirectory can remove it
                    except OSError:
                        pass
        return kept

    def _make(self, game: str, settings: dict[str, Any], seed: int, path: Path) -> None:
        options = self._textworld.GameOptions()
        options.seeds, options.path, options.force_recompile = seed % 2**31, str(path), True
        if game == "custom":
            options.nb_rooms, options.nb_objects = settings["rooms"], settings["objects"]
            options.quest_length = settings["quest_length"]
            made = self._textworld.generator.make_game(options)
        else:
            challenges: Any = importlib.import_module("textworld.challenges")
            made = challenges.CHALLENGES[game][1](settings, options)
        self._textworld.generator.compile_game(made, options)


if __name__ == "__main__":
    serve(Game)
