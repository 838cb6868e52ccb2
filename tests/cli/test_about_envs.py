"""list, describe, check, new: what they say, and their JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym.errors import UsageError
from agentgym.installation import install_command
from agentgym.registry import EnvEntry, entries, make

Command = Callable[..., Any]


def test_list(run: Command) -> None:
    rows = run("list", "--json").json
    household = next(row for row in rows if row["id"] == "agentgym/Household-v0")
    assert {"id", "version", "extra", "available"} <= set(household)
    assert (household["version"], household["extra"], household["available"]) == ("v0", None, True)
    shown = run("list")
    assert shown.code == 0
    assert "agentgym/Household-v0" in shown.out


def test_list_credit(run: Command) -> None:
    rows = run("list", "--credit", "--json").json
    gigpo = next(row for row in rows if row["name"] == "gigpo")
    assert (gigpo["class"], gigpo["status"]) == ("estimator", "verified")
    families = {
        "shaper",
        "estimator",
        "modulator",
        "selection",
        "loss",
        "correction",
        "token mask",
        "regulariser",
        "auxiliary loss",
    }
    assert {row["class"] for row in rows} == families
    assert "igpo" in run("list", "--credit").out


def test_describe(run: Command, guess: str) -> None:
    value = run("describe", guess, "highest=3", "--json").json
    assert value["id"] == "Guess-v0"
    assert value["docstring"].startswith("Guess a number.")
    assert value["splits"] == {"train": 1_000_000, "valid": 1000, "test": 1000}
    assert value["max_turns"] == 6
    assert [row["name"] for row in value["parameters"]] == ["highest", "max_turns", "render_mode"]
    assert value["parameters"][0]["default"] == "10"
    assert value["tools"][0]["usage"] == "guess(number: integer)"
    assert value["tools"][0]["parameters"]["properties"]["number"]["type"] == "integer"
    assert value["first_observation"] == "Guess my [number] between 1 and 3."
    assert value["admissible_actions"] == ["guess: 1", "guess: 2", "guess: 3"]
    maze = run("describe", "agentgym/Maze-v0", "--json").json
    played = run("play", "agentgym/Maze-v0", "--policy", "random").out
    assert f"task {maze['first_task']}" in played
    for line in maze["first_observation"].splitlines():
        assert line.strip() in played
    shown = run("describe", guess)
    assert shown.code == 0
    for text in ("Guess-v0", "The second paragraph.", "guess(number: integer)", "my [number]", "highest: int = 10"):
        assert text in shown.out


@pytest.mark.parametrize(
    ("env", "argument", "needed"),
    [
        ("agentgym/GAIA-v0", "data_dir: str | Path", "needs arguments: data_dir=VALUE"),
        ("agentgym/SearchQA-v0", "outcome: Metric = 'em'", "name them by questions=..., a file in the format"),
    ],
)
def test_describe_shows_the_arguments_of_an_environment_without_its_data(
    run: Command, monkeypatch: pytest.MonkeyPatch, env: str, argument: str, needed: str
) -> None:
    monkeypatch.delenv("AGENTGYM_SHARED_DATA", raising=False)
    shown = run("describe", env)
    assert shown.code == 2 and needed in shown.err
    assert argument in shown.out and "not shown" in shown.out
    assert needed in run("describe", env, "--json").assert_one_line_error()


def test_check(run: Command, guess: str) -> None:
    done = run("check", guess, "--json")
    value = done.json
    assert set(value) == {"env", "passed", "checks"}
    assert all(set(check) == {"name", "passed", "detail", "is_blocked", "is_hung"} for check in value["checks"])
    assert value["passed"] is all(check["passed"] for check in value["checks"])
    assert done.code == (0 if value["passed"] else 1)


def test_check_of_an_unsound_environment_fails(run: Command, guess_file: Path) -> None:
    done = run("check", f"{guess_file}:Broken-v0", "--json")
    assert done.code == 1
    assert done.json["passed"] is False
    assert done.json["env"].endswith("Broken-v0")
    num_others = sum(check["is_blocked"] for check in done.json["checks"])
    shown = " ".join(run("check", f"{guess_file}:Broken-v0").out.split())
    assert f"– {num_others} others no result, since they depend on a check that failed: rewards," in shown
    assert shown.count("the world is broken") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["describe", "agentgym/Houshold-v0"], "did you mean 'agentgym/Household-v0'?"),
        (["check", "agentgym/Houshold-v0"], "did you mean 'agentgym/Household-v0'?"),
        (["play", "agentgym/Houshold-v0"], "did you mean 'agentgym/Household-v0'?"),
        (["eval", "agentgym/Houshold-v0", "--policy", "oracle"], "did you mean 'agentgym/Household-v0'?"),
        (["describe", "GUESS", "hihgest=3"], "unknown argument of Guess-v0: 'hihgest'; did you mean 'highest'?"),
        (["describe", "GUESS", "url=http://a:1"], "url=http://a:1 is no environment server: expected ws://HOST:PORT"),
        (["play", "GUESS", "split=test"], "(the split of tasks is --split of agentgym eval and play, eval.split in tr"),
        (
            ["eval", "GUESS", "--policy", "oracle", "env.kwargs.split=test"],
            "with a plain name as key, got 'env.kwargs.split=test'; did you mean split=test?",
        ),
        (["describe", "GUESS", "a-b=3"], "expected key=value with a plain name as key, got 'a-b=3'\n"),
        (["describe", "GUESS", "highest"], "expected key=value, got 'highest'"),
        (["describe", "GUESS", "highest=3", "highest=4"], "highest is given twice"),
        (["eval", "GUESS", "--policy", "oracle", "scorer.kind=f1", "scorer.kind=em"], "scorer.kind is given twice"),
        (["describe", "GUESS", "max_turns=0"], "max_turns must be at least 1, got 0"),
        (["describe", "nowhere.py:X-v0"], "no file 'nowhere.py' in /"),
        (["describe", "nowhere_at_all:X-v0"], "no module 'nowhere_at_all'"),
        (["train", "folder/mine.toml:mine"], "folder/mine.toml is not a Python file; write FILE.py:NAME, or MODULE:NA"),
    ],
)
def test_bad_input_is_one_line(run: Command, guess: str, arguments: list[str], said: str) -> None:
    done = run(*(guess if argument == "GUESS" else argument for argument in arguments))
    assert said in done.assert_one_line_error()
    with_json = run(*(guess if argument == "GUESS" else argument for argument in arguments), "--json")
    assert said in with_json.assert_one_line_error()
    assert str(Path(agentgym.__file__).parent) not in done.err, "where it was found out says nothing"


def test_missing_extra_says_what_to_install(run: Command) -> None:
    rows = {row["id"]: row for row in run("list", "--json").json}
    if rows["agentgym/ALFWorld-v0"]["available"]:
        pytest.skip("the extra alfworld is installed")
    assert install_command("alfworld") in run("describe", "agentgym/ALFWorld-v0").assert_one_line_error()


def test_a_mistake_in_the_users_file_names_its_line(run: Command, tmp_path: Path) -> None:
    (tmp_path / "slip.py").write_text("import agentgym\n\nundefined_name\n")
    assert "slip.py:3" in run("describe", "slip.py").assert_one_line_error(1)


def test_a_message_never_ends_in_a_path_of_the_interpreter(run: Command, tmp_path: Path) -> None:
    (tmp_path / "slip.py").write_text("import json\n\njson.loads('{')\n")
    said = run("describe", "slip.py").assert_one_line_error(1)
    assert "slip.py:3)" in said and "decoder.py" not in said


def test_debug_shows_the_traceback(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_DEBUG", "1")
    done = run("describe", "nowhere.py")
    assert done.code == 2
    assert "Traceback" in done.err


@pytest.mark.parametrize("name", ["MyWorld", "my_world", "my-world"])
def test_new_writes_a_sound_environment(run: Command, tmp_path: Path, name: str) -> None:
    value = run("new", name, "--file", "--json").json
    assert value["id"] == "MyWorld-v0"
    assert value["files"] == ["my_world.py", "test_my_world.py"]
    assert run("check", "my_world.py:MyWorld-v0", "--json").json["passed"] is True
    compile((tmp_path / "test_my_world.py").read_text(), "test_my_world.py", "exec")


def test_new_refuses_to_overwrite_and_bad_names(run: Command, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    assert "test_mine.py already exists" in run("new", "Mine", "--file").assert_one_line_error()
    assert (tmp_path / "test_mine.py").read_text() == "precious"
    assert not (tmp_path / "mine.py").exists()
    for bad in ("3d", "a/b", "class", ""):
        assert "cannot name an environment" in run("new", bad).assert_one_line_error()
    for hides in ("json", "Random", "numpy", "agentgym"):  # every command in the folder would fail
        assert "there is a module" in run("new", hides, "--file").assert_one_line_error()


def test_new_says_what_to_do_next(run: Command) -> None:
    done = run("new", "Mine", "--file", "--dir", "envs_of_mine")
    assert "agentgym check envs_of_mine/mine.py" in done.out


@pytest.mark.parametrize("entry", [e for e in entries() if e.id.startswith("agentgym/")], ids=lambda entry: entry.id)
def test_the_arguments_that_an_environment_needs_are_listed(entry: EnvEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    if not entry.is_available:
        pytest.skip(f"needs the extra {entry.extra}")
    for variable in [name for name in os.environ if "DATA" in name or name.startswith("AGENTGYM_")]:
        monkeypatch.delenv(variable)
    if not entry.needs:
        make(entry.id).close()
        return
    with pytest.raises(UsageError, match="|".join(entry.needs)):
        make(entry.id)


def test_the_list_shows_what_must_be_given(run: Command) -> None:
    shown = " ".join(run("list").out.split())
    assert "agentgym/GAIA-v0" in shown and "with data_dir=..." in shown
    needs = {row["id"]: row["needs"] for row in run("list", "--json").json}
    assert needs["agentgym/WebArena-v0"] == ["tasks_file", "addresses"] and not needs["agentgym/Household-v0"]


def test_describe_names_choices_and_durations_as_they_are_written(run: Command, tmp_path: Path) -> None:
    (tmp_path / "clock.py").write_text(
        "from datetime import timedelta\nfrom enum import Enum\nfrom agentgym import EnvError, ToolEnv, register\n\n\n"
        "class Side(Enum):\n    WHITE = 'white'\n    BLACK = 'black'\n\n\n"
        "class Clock(ToolEnv):\n    max_turns = 2\n\n"
        "    def __init__(self, *, start: timedelta = timedelta(minutes=3), first: Side = Side.WHITE) -> None:\n"
        "        super().__init__()\n\n"
        "    def start(self, task):\n        return 'Tick.'\n\n\n"
        "register('Clock-v0', Clock)\n"
    )
    shown = run("describe", "clock.py").out
    assert "start: timedelta = 'PT3M'" in shown and "first: 'white' or 'black' = 'white'" in shown
    asked = ("eval", "clock.py:Clock-v0", "--policy", "random", "--episodes", "1")
    assert run(*asked, "start=PT3M", "first=black").code == 0
    told = run(*asked, "start=2:00").assert_one_line_error()
    assert "expected a duration, such as '00:02:30', 'PT2M30S' or a number of seconds" in told
