"""Each check of the kit has a broken environment that fails it, and a sound neighbour that passes."""

from typing import Any

import pytest
from testkit.corridors import BROKEN, Corridor, CountsInstances, RemembersEpisodes
from testkit.sound_corridors import (
    BROKEN_TOO,
    SOUND,
    Lists,
    ListsNonsense,
    ListsNonsenseLater,
    ListsSomeNonsense,
    OverAService,
    RaisesTheOutage,
    TellsTheOutage,
)

from agentgym import Env, Message, Task
from agentgym.check import CheckReport, check_env
from agentgym.check.conformance import CHECKS
from agentgym.errors import EnvError

NUM_EPISODES = 3


def failed(report: CheckReport) -> dict[str, str]:
    return {check.name: check.detail for check in report.failures}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgym.check.leaks._PATIENCE_S", 0.05)
    monkeypatch.setattr("agentgym.check.behaviour._SPEED_S", 0.001)


TABLE = [*BROKEN, *BROKEN_TOO]


def named(env: type[Env] | str) -> str:
    return env if isinstance(env, str) else env.__name__


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("broken", "check"), TABLE, ids=[named(broken) for broken, _ in TABLE])
def test_each_check_fails_for_its_fault_and_no_other(broken: type[Env] | str, check: str) -> None:
    assert list(failed(check_env(broken, num_episodes=NUM_EPISODES))) == [check]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("sound", "check"), SOUND, ids=[named(sound) for sound, _ in SOUND])
def test_each_check_passes_a_sound_neighbour(sound: type[Env] | str, check: str) -> None:
    report = check_env(sound, num_episodes=2)
    result = {one.name: one for one in report.checks}[check]
    assert failed(report) == {}
    assert not result.is_blocked and not result.detail.startswith("not applicable"), result
    is_local = check == "void on demand"  # its programs run in sandboxes alone
    assert is_local or not result.detail.startswith("warning"), result


def test_every_check_has_a_broken_environment_and_a_sound_one() -> None:
    judging = {"construction", *(check.name for check in CHECKS if check.judges)}
    assert {name for _, name in TABLE} == judging == {name for _, name in SOUND}
    assert [check.name for check in CHECKS if not check.judges] == ["speed"]  # a measurement


@pytest.mark.parametrize(
    ("env", "is_sound", "detail"),
    [
        (Lists, True, "0 of 2 episodes succeed"),
        (ListsSomeNonsense, True, "warning: 0 of 2 episodes succeed; 2 of 4 admissible actions are refused"),
        (ListsNonsense, False, "admissible_actions() lists 'push 1', and the environment refuses it"),
        (ListsNonsenseLater, False, "after the first turn all "),
    ],
)
def test_listed_actions_can_be_taken(env: type[Env], is_sound: bool, detail: str) -> None:
    found = {check.name: check for check in check_env(env, num_episodes=2).checks}["random policy"]
    assert found.passed == is_sound and found.detail.startswith(detail)


class FailsOnce(Corridor):
    """Fails in the ninth episode of the process, as a service that is away for a moment does."""

    num_started = 0

    def start(self, task: Task) -> str | tuple[Message, ...]:
        FailsOnce.num_started += 1
        if FailsOnce.num_started == 9:
            raise EnvError("the service is away")
        return super().start(task)


def test_an_outage_is_played_again_and_told() -> None:
    report = check_env(FailsOnce, num_episodes=20)
    assert report.passed
    warned = [check.detail for check in report.checks if "the service is away" in check.detail]
    (detail,) = warned
    assert detail.startswith("warning: ")
    assert detail.endswith(
        "the infrastructure failed once and worked when played again, last: EnvError: the service is away"
    )


class IsAway(Corridor):
    """A world whose service stays away."""

    def start(self, task: Task) -> str | tuple[Message, ...]:
        raise EnvError("the service is away")


def test_an_outage_that_lasts_fails() -> None:
    assert failed(check_env(IsAway, num_episodes=1))["episodes"] == "EnvError: the service is away"


class StumblesOnce(Corridor):
    """An error of its own, once in the process."""

    num_moves = 0

    def respond(self, action: Message) -> Any:
        StumblesOnce.num_moves += 1
        if StumblesOnce.num_moves == 5:
            raise KeyError("token")
        return super().respond(action)


def test_an_error_that_does_not_happen_again_says_so() -> None:
    (detail,) = failed(check_env(StumblesOnce, num_episodes=2)).values()
    assert detail.startswith("KeyError: 'token'") and "not when the same was played again" in detail


@pytest.mark.usefixtures("impatient")
def test_a_flaky_service_is_told_from_chance() -> None:
    """One that shows its failures changes episodes now and then; one that raises them is sound."""
    OverAService.num_requests = 0
    found = failed(check_env(TellsTheOutage, num_episodes=NUM_EPISODES))
    assert "the same actions give another episode now and then" in found["seed determinism"], found
    OverAService.num_requests = 0
    report = check_env(RaisesTheOutage, num_episodes=NUM_EPISODES)
    assert failed(report) == {}
    assert any("and worked when played again" in check.detail for check in report.checks)
    counted = failed(check_env(CountsInstances, num_episodes=1))["seed determinism"]
    assert "a generator without the episode's seed, the clock, an id or a counter" in counted
    lasting = failed(check_env(RemembersEpisodes, num_episodes=1))["seed determinism"]
    assert " plays " not in lasting, "the difference is the same each time"
