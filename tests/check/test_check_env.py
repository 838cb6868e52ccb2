"""The conformance kit: sound environments pass, and each check fails for the fault it is there to find."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from testkit.corridors import (
    BROKEN,
    AsyncCorridor,
    BlockingCorridor,
    Corridor,
    CountsInstances,
    NativeCorridor,
    OneQuestion,
    OracleGoesLeft,
)

from agentgym import Env
from agentgym.check import Chaos, CheckReport, check_env
from agentgym.check.conformance import CHECKS
from agentgym.errors import UnknownNameError, UsageError

NUM_EPISODES = 3


def failed(report: CheckReport) -> dict[str, str]:
    return {check.name: check.detail for check in report.failures}


@pytest.mark.parametrize(
    "factory",
    [
        Corridor,
        BlockingCorridor,
        AsyncCorridor,
        NativeCorridor,
        OneQuestion,
        lambda: Chaos(NativeCorridor(), crash=0.0),
    ],
)
def test_sound_environments_pass(factory: Callable[[], Env]) -> None:
    report = check_env(factory, num_episodes=NUM_EPISODES)
    assert failed(report) == {}
    assert report.passed
    assert [check.name for check in report.checks] == ["construction", *(check.name for check in CHECKS)]


def test_details_say_what_does_not_apply() -> None:
    details = {check.name: check.detail for check in check_env(OneQuestion, num_episodes=2).checks}
    assert details["oracle"] == "not applicable: no oracle"
    assert details["tool schemas"].startswith("not applicable: no tools")
    assert details["cheats"].startswith("not applicable")
    assert details["process determinism"].startswith("not applicable: another process")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.check.leaks._PATIENCE_S", 0.05)
    monkeypatch.setattr("agentgym.check.behaviour._SPEED_S", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
def test_each_check_fails_for_its_fault_and_no_other(broken: type[Env], check: str) -> None:
    assert list(failed(check_env(broken, num_episodes=NUM_EPISODES))) == [check]


def test_every_check_has_a_broken_environment() -> None:
    without = {check.name for check in CHECKS} - {name for _, name in BROKEN}
    assert without == {"process determinism", "speed"}  # the first is tested below, the second judges nothing


FILE = """
from agentgym import ToolEnv, register, tool

class Sorter(ToolEnv):
    "Names in some order."
    max_turns = 6

    def start(self, task):
        names = {"ada", "grace", "edsger", "barbara", "alan", "donald", "john", "leslie"}
        return ", ".join(ORDER(names)) + f" {int(self.np_random.integers(100))}"

    @tool
    def pick(self, name: str) -> str:
        "Pick a name."
        self.finish(1.0 if name == "nobody" else 0.0)
        return "So be it."

register("names/ORDER-v0", Sorter)
"""


@pytest.mark.parametrize(("order", "expected"), [("sorted", []), ("list", ["process determinism"])])
def test_order_of_sets_is_found_by_other_processes(order: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / f"names_{order}.py"
    path.write_text(FILE.replace("ORDER", order))
    name = f"{path}:names/{order}-v0"
    report = check_env(name, num_episodes=1)
    assert list(failed(report)) == expected
    assert report.env == name


def test_an_id_of_this_process_alone_is_not_tried_in_another() -> None:
    from agentgym import register

    register("test/CorridorHere-v0", Corridor)
    details = {check.name: check.detail for check in check_env("test/CorridorHere-v0", num_episodes=1).checks}
    assert "registered in this process alone" in details["process determinism"]


def test_a_check_that_rests_on_a_failed_one_is_not_run() -> None:
    details = {check.name: check.detail for check in check_env(CountsInstances, num_episodes=1).checks}
    assert details["snapshots"] == "not run: it rests on seed determinism, which failed"


def test_inside_an_event_loop() -> None:
    async def as_in_a_notebook() -> CheckReport:
        return check_env(Corridor, num_episodes=1)

    assert asyncio.run(as_in_a_notebook()).passed


def test_usage_errors() -> None:
    with pytest.raises(UnknownNameError, match="Corridor-v9"):
        check_env("test/Corridor-v9")
    with pytest.raises(UsageError, match="num_episodes"):
        check_env(Corridor, num_episodes=0)


def test_report_as_text() -> None:
    text = str(check_env(OracleGoesLeft, num_episodes=1))
    assert text.startswith("OracleGoesLeft: 1 of 26 checks failed")
    assert "FAIL  oracle" in text
