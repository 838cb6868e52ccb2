"""Definitions of tools: parameters mean what Python or pydantic means by them, or are refused with their place."""

# ruff: noqa: B008, RUF013  (fields as defaults and None as default are what is tested)

import dataclasses
import warnings
from collections.abc import Callable
from datetime import date
from enum import Enum
from typing import Annotated, Any, ClassVar, Final

import pytest
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from agentgym.env.tool_env import ToolEnv
from agentgym.errors import ToolDefinitionError, ToolError
from agentgym.tool import Tool, tool, tool_of, tools_of
from agentgym.types import Task, ToolCall


def defined(function: Callable[..., Any]) -> Tool:
    function.__doc__ = "Do it."
    return tool_of(tool(function))


def fields(definition: Tool) -> dict[str, Any]:
    found: dict[str, Any] = definition.spec.parameters["properties"]
    return found


# ------------------------------------------------------------------------------------------------------ parameters


def test_a_field_as_default_is_the_field() -> None:
    def buy(
        count: int = Field(default=1, ge=1, le=3),
        note: str = Field(description="Why."),
        tags: list[str] = Field(default_factory=lambda: ["new"]),
        twice: list[int] = Field(default_factory=lambda data: [data["count"]] * 2),
        limit: Annotated[int, Field(ge=1)] = Field(5, le=9),
        name: str = Field("x", alias="label"),
    ) -> None: ...

    definition = defined(buy)
    assert definition.arguments(ToolCall("buy", {"note": "n"})) == {
        "count": 1, "note": "n", "tags": ["new"], "twice": [1, 1], "limit": 5, "name": "x",
    }  # fmt: skip
    assert fields(definition)["count"] == {"type": "integer", "default": 1, "minimum": 1, "maximum": 3}
    assert fields(definition)["limit"] == {"type": "integer", "default": 5, "minimum": 1, "maximum": 9}
    assert definition.spec.parameters["required"] == ["note"]
    for wrong in ({"note": "n", "count": 4}, {"note": "n", "limit": 0}, {"note": "n", "name": "y"}, {}):
        with pytest.raises(ToolError):
            definition.arguments(ToolCall("buy", wrong))
    assert definition.arguments(ToolCall("buy", {"note": "n", "label": "y"}))["name"] == "y"


class Framework(FieldInfo):  # type: ignore[misc]
    """A parameter object of a framework that derives its own from pydantic's, as FastAPI does."""


def test_a_frameworks_field_is_a_field() -> None:
    def buy(count: int = Framework(default=2)) -> None: ...  # type: ignore[assignment]

    assert defined(buy).arguments(ToolCall("buy")) == {"count": 2}


def test_descriptions_of_annotations_are_kept_and_come_first() -> None:
    @tool
    def go(
        city: Annotated[str, Field(description="Name of the city")],
        by: Annotated[str, "Means of travel"],
        at: Annotated[date, Field(ge=date(2024, 1, 1))],
        to: str = Field("x", description="Its end"),
    ) -> str:
        """Go.

        Args:
            city: less exact
            at: the day
            to: less exact
        """
        return ""

    described = {name: part.get("description") for name, part in fields(tool_of(go)).items()}
    assert described == {"city": "Name of the city", "by": "Means of travel", "at": "the day", "to": "Its end"}


def test_names_that_pydantic_keeps_for_itself_are_names_of_arguments() -> None:
    names = ("model_config", "model_dump", "model_x", "schema", "json", "copy", "construct", "validate", "_x", "dict")
    made: dict[str, Any] = {}
    exec(f"def put({', '.join(f'{name}: int' for name in names)}): pass", made)
    definition = defined(made["put"])
    given = {name: number for number, name in enumerate(names)}
    assert definition.arguments(ToolCall("put", given)) == given
    assert (list(fields(definition)), definition.spec.parameters["required"]) == (list(names), list(names))
    with pytest.raises(ToolError, match=r"^model_dump: Input should be a valid integer"):
        definition.arguments(ToolCall("put", {**given, "model_dump": "x"}))


def test_a_pattern_may_look_ahead() -> None:
    def name(new: Annotated[str, Field(pattern="^(?!_)[a-z_]+$")]) -> None: ...

    definition = defined(name)
    assert definition.arguments(ToolCall("name", {"new": "ada_"})) == {"new": "ada_"}
    with pytest.raises(ToolError, match="should match pattern"):
        definition.arguments(ToolCall("name", {"new": "_ada"}))


def test_names_of_pydantic_cause_no_warning() -> None:
    def ask(schema: str, json: int = 1) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert defined(ask).arguments(ToolCall("ask", {"schema": "a"})) == {"schema": "a", "json": 1}


def test_none_as_default_may_be_given() -> None:
    def look(at: int = None, much: Annotated[int, Field(ge=2)] = None, free: Any = None) -> None: ...  # type: ignore[assignment]

    definition = defined(look)
    given = {"at": None, "much": None, "free": None}
    assert definition.arguments(ToolCall("look", given)) == definition.arguments(ToolCall("look")) == given
    with pytest.raises(ToolError):
        definition.arguments(ToolCall("look", {"much": 1}))


class Place:
    pass


def callback(then: Callable[[int], int]) -> None: ...
def steps(count: int, part: range) -> None: ...
def ending(sure: Final[int] = 3) -> None: ...  # type: ignore[valid-type]
def shared(all: ClassVar[int] = 3) -> None: ...  # type: ignore[misc]
def forward(to: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def dataclass_field(x: int = dataclasses.field(default=1)) -> None: ...
def any_field(x: Any = dataclasses.field(default=1)) -> None: ...
def sentinel(x: str = object()) -> None: ...  # type: ignore[assignment]
def place(x: Place) -> None: ...
def by_position(x: int, /) -> None: ...
def no_pattern(x: Annotated[str, Field(pattern="(")]) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (callback, "the type of the parameter 'then' has no JSON schema"),
        (steps, r"the type of the parameter 'part' has no JSON schema \(Unable .* for <class 'range'>\)$"),
        (ending, "'sure' is for attributes of classes"),
        (shared, "'all' is for attributes of classes"),
        (forward, r"an annotation names what is not defined \(name 'Nowhere' is not defined\)"),
        (dataclass_field, "the default of 'x' is a Field, which is no value of the parameter's type"),
        (any_field, "the default of 'x' is a Field"),
        (sentinel, "the default of 'x' is a object"),
        (place, "the type of the parameter 'x' has no JSON schema"),
        (no_pattern, "the type of the parameter 'x' has no JSON schema"),
        (by_position, "arguments are given by name; remove the /"),
    ],
)
def test_parameters_without_a_schema_are_refused_with_tool_and_place(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(ToolDefinitionError, match=rf"^tool '{function.__name__}' \(\S+\.py:\d+\): .*{says}"):
        _ = defined(function).spec


@pytest.mark.parametrize("marked", ["name", 3, type, property(lambda self: 1)])
def test_only_functions_are_tools(marked: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="@tool marks a function or a method, got"):
        tool(marked)


def test_annotations_may_name_what_is_local_or_defined_later() -> None:
    class Later(ToolEnv):
        class Size(Enum):
            SMALL = "s"

        @tool
        def list(self, names: "list[str]") -> None:
            """List."""

        @tool
        def shown(self, names: "list[str]") -> None:  # type: ignore[valid-type]
            """Show."""

        @tool
        def fill(self, shelf: "Shelf") -> None:
            """Fill."""

        @tool
        def pour(self: "Later", size: "Size", into: "Cup") -> "NoSuchResult":  # type: ignore[name-defined]  # noqa: F821
            """Pour."""

    assert fields(tool_of(Later.shown))["names"] == fields(tool_of(Later.list))["names"]
    assert fields(tool_of(Later.pour))["into"] == {"$ref": "#/$defs/Cup"}


class Shelf(BaseModel):
    cups: list["Cup"]


@tool
def arrange(shelf: Shelf) -> None:
    """Arrange a shelf, whose model is not complete yet."""


class Cup(BaseModel):
    volume: int


def test_a_model_may_be_completed_later() -> None:
    assert tool_of(arrange).arguments(ToolCall("arrange", {"shelf": {"cups": [{"volume": 2}]}})) == {
        "shelf": Shelf(cups=[Cup(volume=2)])
    }


class Hole(BaseModel):
    inside: "Nothing"  # type: ignore[name-defined]  # noqa: F821


def test_a_model_that_is_never_completed_is_refused() -> None:
    def dig(hole: Hole) -> None: ...

    with pytest.raises(
        ToolDefinitionError,
        match=r"^tool 'dig' .*'hole' has no .*\(an annotation names what .*Nothing' is not defined\)\)$",
    ):
        _ = defined(dig).spec


# ------------------------------------------------------------------------------------------------------- methods


class Door(ToolEnv):
    """A door whose tools are methods of all kinds."""

    def start(self, task: Task) -> str:
        return "A door."

    @tool
    def open(self, door: str, force: int = 1) -> str:
        """Open a door."""
        return f"base {door} {force}"

    @tool
    @staticmethod
    def look(at: str) -> str:
        """Look."""
        return f"static {at}"

    @staticmethod
    @tool
    def knock(times: int) -> str:
        """Knock."""
        return f"static {times}"

    @tool
    @classmethod
    def name(cls, of: str) -> str:
        """Name."""
        return f"{cls.__name__} {of}"

    @classmethod
    @tool
    def shut(cls, of: str) -> str:
        """Shut."""
        return f"{cls.__name__} {of}"


def said(env: ToolEnv, text: str) -> str:
    env.reset(seed=0)
    return env.step(text)[0][0].text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("open: red", "base red 1"),
        ("look: up", "static up"),
        ("knock: 2", "static 2"),
        ("name: it", "Door it"),
        ("shut: it", "Door it"),
    ],
)
def test_methods_of_every_kind_are_called_as_python_calls_them(text: str, says: str) -> None:
    assert said(Door(), text) == says


def test_an_override_runs_whether_it_is_marked_or_not() -> None:
    class Oak(Door):
        def open(self, door: str, force: int = 1) -> str:
            return f"oak, then {super().open(door, force)}"

        @staticmethod
        def look(at: str) -> str:
            return f"oak {at}"

        async def knock(self, times: int) -> str:  # type: ignore[override]
            return f"oak {times}"

        @tool
        def name(self, letters: int) -> str:  # type: ignore[override]
            """Name it by a number of letters."""
            return f"oak {letters}"

    oak = Oak()
    assert [said(oak, text) for text in ("open: red", "look: up", "knock: 2", "name: 3")] == [
        "oak, then base red 1", "oak up", "oak 2", "oak 3",
    ]  # fmt: skip
    assert [spec.name for spec in oak.tools] == ["open", "look", "knock", "name", "shut"]
    assert said(Door(), "name: x") == "Door x"

    class Mixin:
        def open(self, door: str, force: int) -> str:
            return "mixin"

    class Mixed(Mixin, Oak):  # type: ignore[misc]
        pass

    assert said(Mixed(), "open: red") == "mixin"


def test_a_tool_replaced_later_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "open", lambda self, door, force: "patched")
    assert said(Door(), "open: red") == "patched"


def test_none_removes_a_tool_and_a_subclass_brings_it_back() -> None:
    class Wall(Door):
        open = None  # type: ignore[assignment]

    class Gate(Wall):
        @tool
        def open(self) -> str:  # type: ignore[override]
            """Open the gate."""
            return "gate"

    assert [spec.name for spec in Wall().tools] == ["look", "knock", "name", "shut"]
    assert "unknown tool 'open'" in said(Wall(), "open: red")
    assert said(Gate(), "open") == "gate"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (3, r"^Odd\.open is a int, and a base class has a tool of that name"),
        (property(lambda self: 1), r"^Odd\.open is a property, and"),
        (lambda self, door: "", r"\(\S+\.py:\d+\) overrides a tool of other parameters .*'force'.*mark it with @tool"),
    ],
)
def test_overrides_that_cannot_stand_for_the_tool_are_refused(override: Any, says: str) -> None:
    with pytest.raises(ToolDefinitionError, match=says):
        type("Odd", (Door,), {"open": override})


def test_one_tool_under_two_names_is_there_until_both_are_removed() -> None:
    class Twice(Door):
        unlock = Door.open

    assert [spec.name for spec in Twice().tools].count("open") == 1
    assert "open" in tools_of(type("Once", (Twice,), {"unlock": None}))
    assert "open" not in tools_of(type("Never", (Twice,), {"unlock": None, "open": None}))
