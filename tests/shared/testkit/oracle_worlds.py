"""Arguments of environments that need data or a site, made of small data of our own, to play their oracles."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.web_app.process import AppProcess
from agentgym.envs.gui.web_app.spec import load_web_app
from agentgym.envs.semi_online.traces import record_traces
from agentgym.registry import make
from testkit.agentbench_tables import write_agentbench
from testkit.appworld_server import write_appworld, write_python
from testkit.gaia_rows import write_gaia
from testkit.math_files import write_math
from testkit.picture_questions import write_picture_questions
from testkit.retail_tasks import write_retail
from testkit.tau2_worlds import write_airline, write_telecom
from testkit.webarena_site import TASKS, arguments_of

QUESTION = {
    "_id": "h1",
    "question": "Where does Kur lie?",
    "answer": "below",
    "supporting_facts": [["Kur", 1]],
    "context": [["Anu", ["Anu rules the sky."]], ["Kur", ["Kur is a land.", " It lies below."]]],
}


def _math(folder: Path) -> dict[str, Any]:
    return {"problems": str(write_math(folder / "math"))}


def _search_qa(folder: Path) -> dict[str, Any]:
    questions = [QUESTION | {"_id": f"h{number}"} for number in range(40)]  # enough for a split to have one
    (folder / "questions.json").write_text(json.dumps(questions))
    return {"questions": str(folder / "questions.json")}


def _semi_online(folder: Path) -> dict[str, Any]:
    maze = make("agentgym/Maze-v0")
    record_traces(maze, maze.tasks("train")[:3], folder / "maze.jsonl")
    return {"env": "agentgym/Maze-v0", "traces": str(folder / "maze.jsonl")}


def _app_world(folder: Path) -> dict[str, Any]:
    solution = "def solution(apis, requester): ...  # one two three done"
    return {"data_dir": write_appworld(folder / "root", solution), "python": write_python(folder), "max_turns": 3}


@contextmanager
def _web_arena(folder: Path) -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        book = AppProcess(load_web_app("guestbook"), sys.executable)
        book.begin()
        try:
            yield arguments_of(book, folder, TASKS[:2])
        finally:
            close_browsers()
            book.close()


@contextmanager
def _given(arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield dict(arguments)


_MADE: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "Math-v0": _math,
    "MathTools-v0": _math,
    "SearchQA-v0": _search_qa,
    "SemiOnline-v0": _semi_online,
    "PictureQuestions-v0": lambda folder: {"questions": str(write_picture_questions(folder / "pictures"))},
    "AppWorld-v0": _app_world,
    "AgentBenchDB-v0": lambda folder: {"data_dir": write_agentbench(folder / "data")},
    "GAIA-v0": lambda folder: {"data_dir": write_gaia(folder / "data"), "sandbox": "process"},
    "Tau2Retail-v0": lambda folder: {"data_dir": write_retail(folder / "data")},
    "Tau2Airline-v0": lambda folder: {"data_dir": _made(folder, write_airline)},
    "Tau2Telecom-v0": lambda folder: {"data_dir": _made(folder, write_telecom)},
    "MiniWoB-v0": lambda folder: {"task": "click-test"},
}
WITH_ARGUMENTS = frozenset({*_MADE, "WebArena-v0"})
"""Environments for which :func:`arguments` makes something."""


def _made(folder: Path, write: Callable[[Path], Path]) -> Path:
    (folder / "data").mkdir()
    return write(folder / "data")


@contextmanager
def arguments(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Give an environment's arguments, and end what was started for it."""
    held = _web_arena(folder) if name == "WebArena-v0" else _given(_MADE[name](folder) if name in _MADE else {})
    with held as found:
        yield found
