"""The limit that adapts, against engines whose capacity is known, on a clock that is told the time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from agentgym.engine import EngineHealth
from agentgym.errors import ConfigError
from agentgym.rollout.in_flight import AdaptiveLimit, InFlight, SampledReport
from agentgym.types import Completion, FinishReason, Latency, Message, Turn

MOST = 256
TOKENS = 10


class Station:
    """Episodes that are ``env_s`` in their environments and then ask an engine for ten tokens.

    Up to ``capacity`` requests at a time take ``base_s`` each; more only wait for each other (a batch that is full).
    """

    def __init__(self, capacity: float, env_s: float = 0.0, base_s: float = 1.0) -> None:
        self.capacity, self.env_s, self.base_s = capacity, env_s, base_s
        self.now = 0.0

    def rates(self, num_playing: int) -> tuple[float, float]:
        """Requests per second, and seconds per request."""
        free = num_playing / (self.env_s + self.base_s)  # by Little's law, if none waits
        rate = min(free, self.capacity / self.base_s)
        return rate, num_playing / rate - self.env_s

    def run(self, limit: AdaptiveLimit, num_turns: int, *, num_asking: int = MOST) -> list[int]:
        """The limit after every turn."""
        seen = []
        for _ in range(num_turns):
            playing = min(limit.limit, num_asking)
            rate, generate_s = self.rates(playing)
            self.now += 1 / rate
            limit.observe(self.now, TOKENS, generate_s, is_full=playing >= limit.limit)
            seen.append(limit.limit)
        return seen


@pytest.mark.parametrize("capacity", [6, 20, 48, 100])
def test_it_settles_around_what_the_engine_can_take(capacity: int) -> None:
    seen = Station(capacity).run(AdaptiveLimit(most=MOST), 6000)[3000:]
    assert 0.6 * capacity < min(seen) and max(seen) < 2 * capacity
    assert 0.8 * capacity < sum(seen) / len(seen) < 1.4 * capacity


def test_environments_that_are_slow_let_it_rise_to_the_most() -> None:
    assert Station(capacity=100, env_s=20.0).run(AdaptiveLimit(most=MOST), 3000)[-1] == MOST


def test_it_doubles_at_first_and_then_goes_by_steps() -> None:
    seen = Station(capacity=48).run(AdaptiveLimit(most=MOST, first=8, window_turns=16), 400)
    values = [now for before, now in zip([8, *seen], seen, strict=False) if now != before]
    assert values[:4] == [16, 32, 64, 128], "the last window of 64 was still faster than half way to 64"
    assert values[4] == 64
    assert {now - before for before, now in pairwise(values[4:]) if now > before} == {2}


def test_it_follows_an_engine_that_loses_half_of_its_capacity() -> None:
    limit, station = AdaptiveLimit(most=MOST), Station(capacity=80)
    before = station.run(limit, 6000)[3000:]
    station.capacity, station.base_s = 40, 1.0
    after = station.run(limit, 6000)[3000:]
    assert sum(after) / len(after) < 0.7 * sum(before) / len(before)


def test_a_limit_that_is_not_reached_says_nothing() -> None:
    limit = AdaptiveLimit(most=MOST, first=32)
    assert set(Station(capacity=4).run(limit, 1000, num_asking=20)) == {32}


def test_a_window_that_is_begun_anew_forgets_the_pause() -> None:
    limit, station = AdaptiveLimit(most=MOST, first=8), Station(capacity=1000)
    for _ in range(20):
        station.run(limit, 80)
        station.now += 1000.0  # training, while nothing is played
        limit.begin_window(station.now)
    assert limit.limit == MOST


def fed(limit: AdaptiveLimit, reports: list[EngineHealth | None], *, is_full: bool = True) -> list[int]:
    """The limit after each window of one turn of equal speed, with what the engine tells at its end."""
    seen = []
    for number, health in enumerate([None, *reports]):  # the first only begins the window
        limit.observe(float(number), TOKENS, 0.5, is_full=is_full, health=health)
        seen.append(limit.limit)
    return seen[1:]


def told(**facts: float) -> EngineHealth:
    return EngineHealth(**{"running": 20, "queued": 0, "cache_use": 0.3, "preempted": 0, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize("facts", [{"queued": 1}, {"cache_use": 0.9}])
def test_it_holds_while_requests_wait_or_the_cache_is_nearly_full(facts: dict[str, float]) -> None:
    limit = AdaptiveLimit(most=MOST, first=8, window_turns=1)
    assert fed(limit, [told(), told(**facts), told(**facts), told()]) == [16, 16, 16, 18]


@pytest.mark.parametrize("facts", [{"queued": 11}, {"preempted": 3}])
def test_it_shrinks_when_many_wait_or_places_were_lost_even_if_it_was_not_reached(facts: dict[str, float]) -> None:
    limit = AdaptiveLimit(most=MOST, first=8, window_turns=1)
    assert fed(limit, [told(), told(**facts)]) == [16, 8]
    limit = AdaptiveLimit(most=MOST, first=8, window_turns=1)
    assert fed(limit, [told(), told(**facts)], is_full=False) == [8, 4]


def test_it_shrinks_once_and_waits_until_the_episodes_above_it_have_ended() -> None:
    limit = AdaptiveLimit(most=MOST, first=32, window_turns=1)
    limit.observe(0.0, TOKENS, 0.5, is_full=True, health=told())
    seen = []
    for number, playing in enumerate([32, 32, 30, 24, 16, 16], start=1):
        health = told(queued=11, preempted=number if playing > 16 else 4)
        is_over = playing > limit.limit
        limit.observe(float(number), TOKENS, 0.5, is_full=True, is_over=is_over, health=health)
        seen.append(limit.limit)
    assert seen == [16, 16, 16, 16, 8, 8]


def test_a_server_that_begins_its_counters_anew_is_no_congestion() -> None:
    limit = AdaptiveLimit(most=MOST, first=8, window_turns=1)
    assert fed(limit, [told(preempted=5), told(preempted=0), told(preempted=0)]) == [16, 32, 64]


def test_it_does_not_swing_between_reports() -> None:
    """A queue that comes with the limit and goes with it: the limit stays between half of the place and the place."""
    limit, place, seen = AdaptiveLimit(most=MOST, first=8, window_turns=1), 40, []
    limit.observe(0.0, TOKENS, 0.5, is_full=True)
    for number in range(1, 200):
        running = min(place, limit.limit)
        health = told(running=running, queued=max(0, limit.limit - place), cache_use=0.0)
        limit.observe(float(number), TOKENS * running, 0.5 * running, is_full=True, health=health)
        seen.append(limit.limit)
    assert min(seen[10:]) >= 20 and max(seen[10:]) <= 64
    assert 35 <= sum(seen[100:]) / 99 <= 48


def a_turn() -> Turn:
    return Turn(
        index=0,
        completion=Completion(
            token_ids=(1,), logprobs=(0.0,), policy_versions=(0,), finish_reason=FinishReason.STOP
        ),
        action=Message("assistant", "a"),
        latency=Latency(0.0, 1.0, 0.0),
    )  # fmt: skip


def test_reports_of_other_processes_move_the_limit_as_their_turns_would() -> None:
    now = [0.0]
    in_flight = InFlight(99, AdaptiveLimit(most=64, first=2, window_turns=4), clock=lambda: now[0])
    in_flight.follows_reports = True
    in_flight.num_playing = 2
    nothing = replace(a_turn().completion, token_ids=(), logprobs=(), policy_versions=())
    report = SampledReport(span_s=1.0).plus(a_turn()).plus(a_turn()).plus(replace(a_turn(), completion=nothing))
    assert (report.num_turns, report.num_tokens, report.generate_s) == (2, 2, 2.0), "what has no token says nothing"
    in_flight.begin_window()
    for _ in range(9):
        in_flight.observe(a_turn())  # they come with their episodes, and have been reported
    now[0] = 0.5
    in_flight.observe_report(report)
    in_flight.observe_report(report)
    assert in_flight.limit == 2, "they began before the window"
    for now[0] in (1.0, 2.0):
        in_flight.observe_report(report)
    assert in_flight.limit == 4, "four turns are a window"
    in_flight.observe_report(SampledReport(span_s=1.0))
    assert in_flight.limit == 4


def test_turns_move_the_limit_and_admit_who_waits() -> None:
    turn = a_turn()
    now = iter(range(100))
    in_flight = InFlight(99, AdaptiveLimit(most=64, first=2, window_turns=4), clock=lambda: float(next(now)))
    assert in_flight.limit == 2
    in_flight.num_playing = 2
    for _ in range(5):
        in_flight.observe(turn)
    assert in_flight.limit == 4
    fixed = InFlight(3)
    fixed.observe(turn)
    assert fixed.limit == 3


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 <= least <= most"):
        AdaptiveLimit(most=4, least=8)
