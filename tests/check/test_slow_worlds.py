"""Checks of slow environments: fewer episodes, signs of life, and time limits that grow with the episodes asked for."""

import itertools
import time
from typing import Any

import pytest
from testkit.corridors import Corridor

from agentgym.check import check_env, conformance
from agentgym.check.conformance import CHECKS
from agentgym.check.report import run_check
from agentgym.cli.check import _CheckProgress
from agentgym.cli.output import Output


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A clock on which every look at it takes ``step`` seconds."""
    set_to = {"step": 0.0}
    now = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(now) * set_to["step"])
    return set_to


def details(**settings: Any) -> dict[str, str]:
    return {check.name: check.detail for check in check_env(Corridor, **settings).checks}


def test_slow_environments_play_fewer_episodes(clock: dict[str, float]) -> None:
    clock["step"] = 4.0
    slow = details()
    assert slow["episodes"].endswith("; an episode takes 4.0 s, so each check plays 2 episodes (--episodes)")
    assert slow["seed determinism"] == "2 tasks, each with its own and another seed"
    asked = details(num_episodes=3)
    assert "takes" not in asked["episodes"]
    assert asked["seed determinism"].startswith("3 tasks"), "a number that was given holds"


def test_fast_environments_play_all_episodes(clock: dict[str, float]) -> None:
    clock["step"] = 0.1
    fast = details()
    assert "takes" not in fast["episodes"]
    assert fast["seed determinism"].startswith("5 tasks")


def test_a_check_of_more_episodes_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred episodes took a sound environment beyond a limit that was made for five."""
    limits: list[float | None] = []

    def recorded(name: str, function: Any, subject: Any, timeout_s: float | None = None) -> Any:
        limits.append(timeout_s)
        return run_check(name, function, subject, timeout_s)

    monkeypatch.setattr(conformance, "run_check", recorded)
    for num_episodes in (1, 5, 10):
        check_env(Corridor, num_episodes=num_episodes, check_timeout_s=60.0)
    assert [*dict.fromkeys(limits)] == [60.0, 120.0]


def test_turns_are_told_while_a_check_runs() -> None:
    told: dict[str, list[int]] = {}
    check_env(Corridor, num_episodes=1, on_turn=lambda name, turns: told.setdefault(name, []).append(turns))
    playing = {check.name for check in CHECKS} - {"tool schemas", "control verbs", "closing", "splits", "observations"}
    assert {"episodes", "seed determinism", "async path", "snapshots", "hostile actions", "leaks"} <= told.keys()
    assert told.keys() <= playing
    assert all(turns == sorted(turns) for turns in told.values())


def test_logs_have_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal there is one note every half a minute, on standard error."""
    now = [100.0]
    progress = _CheckProgress(Output(as_json=False), clock=lambda: now[0])
    for turn in range(1, 91):
        now[0] += 1
        progress.on_turn("leaks", turn)
    progress.end()
    progress.on_turn("speed", 1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [f"leaks: {turns} turns, {turns} s" for turns in (30, 60, 90)]
