"""Arguments of environments have the types of the constructor's annotations, on every way in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest

import agentgym
from agentgym import Message, Task, ToolEnv, register, tool
from agentgym.env.arguments import plain_arguments, typed_arguments
from agentgym.errors import UsageError
from agentgym.evals.suites import suite_from_dict
from agentgym.registry import make


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Size:
    width: int = 1


class Typed(ToolEnv):
    """An environment with an argument of each kind."""

    def __init__(
        self,
        today: date = date(2026, 1, 1),
        mode: Literal["plain", "noisy"] = "plain",
        strict: bool = False,
        colour: Colour = Colour.RED,
        limit: int | None = None,
        names: Sequence[str] = (),
        size: Size = Size(),  # noqa: B008
        max_turns: int = 3,
    ) -> None:
        super().__init__(max_turns=max_turns)
        self.given = (today, mode, strict, colour, limit, names, size)

    def start(self, task: Task) -> str:
        return "Go."

    @tool
    def go(self) -> str:
        """Go."""
        self.finish(1.0)
        return "Gone."

    def oracle(self) -> Message:
        return self.parse_action("go")


register("Typed-v0", Typed)
TEXTS = {
    "today": "2026-05-01",
    "mode": "noisy",
    "strict": "true",
    "colour": "blue",
    "limit": "3",
    "size": {"width": "2"},
}
OBJECTS = (date(2026, 5, 1), "noisy", True, Colour.BLUE, 3, (), Size(2))


def test_texts_become_the_types_of_the_annotations() -> None:
    env = make("Typed-v0", **TEXTS)
    assert isinstance(env, Typed) and env.given == OBJECTS


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("today", "soon", "date"),
        ("mode", "loud", "'plain' or 'noisy'"),
        ("strict", "maybe", "boolean"),
        ("colour", "green", "'red' or 'blue'"),
        ("limit", "many", "integer"),
        ("limit", True, "number"),
        ("limit", 1.0, "whole number"),
        ("names", "abc", "Sequence"),
    ],
)
def test_a_value_that_does_not_fit_is_one_error(name: str, value: object, expected: str) -> None:
    with pytest.raises(UsageError, match=f"Typed-v0: {name}=") as told:
        make("Typed-v0", **{name: value})
    assert expected in str(told.value) and "\n" not in str(told.value)


def test_dates_of_toml_and_of_python_are_kept_as_text(tmp_path: Path) -> None:
    parts = [{"env": "Typed-v0", "num_tasks": 1, "kwargs": {"today": date(2026, 5, 1)}}]
    assert suite_from_dict({"name": "s", "version": 1, "parts": parts}).parts[0].kwargs == {"today": "2026-05-01"}
    kwargs = {"today": date(2026, 5, 1), "colour": Colour.BLUE}
    envs: tuple[str | type[Typed], ...] = ("Typed-v0", Typed)
    for number, env in enumerate(envs):
        found = agentgym.evaluate(env, "oracle", kwargs=kwargs, episodes=1, run_dir=tmp_path / str(number))
        assert found.success == 1.0
    with pytest.raises(UsageError, match=r"today=.* cannot be kept"):
        plain_arguments("Typed-v0", {"today": object()})


def test_annotations_that_cannot_be_read_leave_arguments_alone() -> None:
    def world(first: "Nowhere", second=1): ...  # type: ignore[no-untyped-def,name-defined] # noqa: F821, UP037

    assert typed_arguments("W-v0", world, {"first": "x", "second": "y"}) == {"first": "x", "second": "y"}
