"""Arguments of environments have the types of the constructor's annotations, on every way in."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy
import pytest
from testkit import typed_env
from testkit.env_servers import env_server
from testkit.typed_env import Colour, Size, Typed

import agentgym
from agentgym.env.arguments import plain_arguments, typed_arguments
from agentgym.errors import UsageError
from agentgym.evals.suites import Suite
from agentgym.registry import make
from agentgym.settings import checked

TEXTS: dict[str, object] = {
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


GIVEN: tuple[dict[str, object], ...] = (
    {}, TEXTS, {"today": date(2026, 5, 1)}, {"today": "soon"}, {"mode": "loud"}, {"strict": 1}, {"strict": "maybe"},
    {"colour": Colour.BLUE}, {"colour": "green"}, {"limit": 3.0}, {"limit": True}, {"limit": 2**70},
    {"limit": numpy.int64(3)}, {"strict": numpy.bool_(True)}, {"names": ("a", "b")}, {"names": ["a", "b"]},
    {"names": {"b", "a"}}, {"names": "abc"}, {"names": ["\ud800"]}, {"size": Size(2)}, {"size": {"width": "x"}},
    {"max_turns": "5"}, {"max_turns": 5.5}, {"nothing": 1},
)  # fmt: skip


def made_from(**kwargs: object) -> str:
    """Return an environment's first text, or the error."""
    try:
        env = make("Typed-v0", **kwargs)
    except UsageError as error:
        return f"{type(error).__name__}: {error}"
    try:
        return f"{env.reset(seed=0)[0][0].text} in {env.max_turns} turns"
    finally:
        env.close()


def test_an_environment_of_a_server_has_the_same_types_and_errors() -> None:
    world = f"{typed_env.__file__}:Typed-v0"
    with env_server(world) as server, env_server(world, "--processes", "0") as other:
        for kwargs in GIVEN:
            here = made_from(**kwargs)
            for url in (server.url, other.url):
                assert made_from(**kwargs, url=url) == here, kwargs
        assert "'a', 'b'" in made_from(names=["a", "b"], url=server.url)
        for never in (object(), iter("ab")):
            with pytest.raises(UsageError, match=r"names=.* cannot be kept with the results or sent to a server"):
                make("Typed-v0", names=never, url=server.url)
        for word in ("today=soon", "limit=3.5", "nothing=1"):
            command = [sys.executable, "-m", "agentgym", "play", world, word, "--policy", "oracle"]
            runs = [
                subprocess.run([*command, *more], capture_output=True, text=True, check=False)
                for more in ([], [f"url={server.url}"])
            ]
            assert [one.returncode for one in runs] == [2, 2]
            assert runs[0].stderr == runs[1].stderr and "Traceback" not in runs[0].stderr


def test_sets_are_kept_in_one_order() -> None:
    """Their own order changes from process to process."""
    assert plain_arguments("W-v0", {"a": {"c", "b"}, "d": [frozenset({2, 1})]}) == {"a": ["b", "c"], "d": [[1, 2]]}


def test_dates_of_toml_and_of_python_are_kept_as_text(tmp_path: Path) -> None:
    parts = [{"env": "Typed-v0", "num_tasks": 1, "kwargs": {"today": date(2026, 5, 1)}}]
    assert checked(Suite, {"name": "s", "version": 1, "parts": parts}).parts[0].kwargs == {"today": "2026-05-01"}
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


@pytest.mark.parametrize(
    ("env", "argument", "said"),
    [
        ("agentgym/Code-v0", {"data": "zzz"}, "source=humaneval"),
        ("agentgym/CodeRepair-v0", {"exercism_path": "zzz"}, "source=exercism"),
        ("agentgym/SWE-v0", {"harbor_split": "train"}, "source='harbor'"),
    ],
)
def test_arguments_of_another_source_are_refused(env: str, argument: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(env, **argument)
