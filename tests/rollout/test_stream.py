"""Groups ahead of training: the bound, the order, exact accounting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import ConfigError, RunStoppedError
from agentgym.rollout.stream import GroupStream, StreamState
from agentgym.types import Task, TrajectoryGroup

PER_STEP = 2


class Studio:
    """Plays groups that take as many turns of a clock as they are told, and remembers who was started when."""

    def __init__(self, duration: Callable[[int], int] = lambda ordinal: 1) -> None:
        self.duration = duration
        self.version = 0
        self.now = 0
        self.ticked = asyncio.Event()
        self.begun: dict[int, int] = {}

    async def play(self, ordinal: int) -> TrajectoryGroup:
        self.begun[ordinal] = self.version
        end = self.now + self.duration(ordinal)
        while self.now < end:
            await self.ticked.wait()
            self.ticked.clear()
        return TrajectoryGroup(ordinal=ordinal, task=Task(id="t", split="train", seed=0), trajectories=())

    async def clock(self) -> None:
        while True:
            self.now += 1
            self.ticked.set()
            for _ in range(5):
                await asyncio.sleep(0)


def stream_of(studio: Studio, num_groups: int, max_staleness: int, state: StreamState | None = None) -> GroupStream:
    return GroupStream(
        studio.play, groups_per_step=PER_STEP, max_staleness=max_staleness, num_groups=num_groups, state=state
    )


def take_all(studio: Studio, num_steps: int, max_staleness: int) -> list[list[int]]:
    """The ordinals of every step, with the bound checked at each."""

    async def run() -> list[list[int]]:
        stream = stream_of(studio, num_steps * PER_STEP, max_staleness)
        clock = asyncio.ensure_future(studio.clock())
        steps = []
        for version in range(num_steps):
            studio.version = version
            groups = await stream.take(version)
            assert all(version - studio.begun[group.ordinal] <= max_staleness for group in groups)
            assert stream.state.num_taken == (version + 1) * PER_STEP
            assert stream.state.next_ordinal <= (version + 1 + max_staleness) * PER_STEP
            steps.append([group.ordinal for group in groups])
        clock.cancel()
        assert stream.state.pending == ()
        return steps

    return asyncio.run(run())


def test_without_staleness_a_step_is_its_own_groups() -> None:
    assert take_all(Studio(lambda ordinal: 5 - ordinal % 3), 4, 0) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_slow_group_is_overtaken_and_then_due() -> None:
    steps = take_all(Studio(lambda ordinal: 10_000 if ordinal == 0 else 1), 5, 2)
    assert 0 in steps[2]
    assert steps[:2] == [[1, 2], [3, 4]]


@given(
    durations=st.lists(st.integers(0, 9), min_size=12, max_size=12),
    max_staleness=st.integers(0, 4),
)
def test_every_group_is_taken_exactly_once_within_the_bound(durations: list[int], max_staleness: int) -> None:
    steps = take_all(Studio(lambda ordinal: durations[ordinal]), 6, max_staleness)
    assert [len(step) for step in steps] == [PER_STEP] * 6
    assert sorted(ordinal for step in steps for ordinal in step) == list(range(12))


@given(
    durations=st.lists(st.integers(0, 9), min_size=12, max_size=12),
    max_staleness=st.integers(0, 3),
    stop_after=st.integers(0, 5),
)
def test_what_was_pending_is_played_again_after_a_resumption(
    durations: list[int], max_staleness: int, stop_after: int
) -> None:
    studio = Studio(lambda ordinal: durations[ordinal])

    async def run() -> list[int]:
        clock = asyncio.ensure_future(studio.clock())
        stream = stream_of(studio, 12, max_staleness)
        taken = [group.ordinal for version in range(stop_after) for group in await stream.take(version)]
        stream.fill(stop_after)
        state = stream.state
        await stream.close()
        assert stream.state == state
        resumed = stream_of(studio, 12, max_staleness, state)
        for version in range(stop_after, 6):
            taken += [group.ordinal for group in await resumed.take(version)]
        clock.cancel()
        return taken

    assert sorted(asyncio.run(run())) == list(range(12))


@given(
    durations=st.lists(st.integers(0, 9), min_size=24, max_size=24),
    max_staleness=st.integers(0, 3),
    stop_after=st.integers(0, 5),
    parts=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
)
def test_any_number_of_streams_share_the_groups_and_go_on_with_those_of_others(
    durations: list[int], max_staleness: int, stop_after: int, parts: tuple[int, int]
) -> None:
    def streams(state: StreamState | None, num_parts: int) -> list[GroupStream]:
        return [
            GroupStream(
                studio.play,
                groups_per_step=4,
                max_staleness=max_staleness,
                num_groups=24,
                state=state,
                part=part,
                num_parts=num_parts,
            )
            for part in range(num_parts)
        ]

    async def step(shared: list[GroupStream], version: int) -> list[int]:
        studio.version = version
        shares = await asyncio.gather(*(stream.take(version) for stream in shared))
        assert all(version - studio.begun[group.ordinal] <= max_staleness for share in shares for group in share)
        assert {len(share) for share in shares} == {4 // len(shared)}
        taken = [group.ordinal for share in shares for group in share]
        for stream in shared:
            stream.forget(taken)
        assert len({stream.state for stream in shared}) == 1, "each knows the state of all"
        assert shared[0].state.num_taken == 4 * (version + 1)
        return taken

    async def run() -> list[int]:
        clock = asyncio.ensure_future(studio.clock())
        before = streams(None, parts[0])
        taken = [ordinal for version in range(stop_after) for ordinal in await step(before, version)]
        state = before[0].state
        for stream in before:
            await stream.close()
        after = streams(state, parts[1])
        taken += [ordinal for version in range(stop_after, 6) for ordinal in await step(after, version)]
        clock.cancel()
        return taken

    studio = Studio(lambda ordinal: durations[ordinal])
    assert sorted(asyncio.run(run())) == list(range(24))


def test_streams_share_a_step_that_they_do_not_divide() -> None:
    studio = Studio()

    async def run() -> list[list[list[int]]]:
        clock = asyncio.ensure_future(studio.clock())
        shared = [
            GroupStream(studio.play, groups_per_step=3, max_staleness=0, num_groups=6, part=part, num_parts=2)
            for part in range(2)
        ]
        steps = [[[g.ordinal for g in await stream.take(version)] for stream in shared] for version in range(2)]
        clock.cancel()
        return steps

    assert asyncio.run(run()) == [[[0, 2], [1]], [[4], [3, 5]]]
    with pytest.raises(ConfigError, match="2 streams cannot share 3 groups per step equally"):
        GroupStream(studio.play, groups_per_step=3, max_staleness=1, num_groups=6, num_parts=2)


def test_what_playing_raises_is_raised_by_take() -> None:
    async def play(ordinal: int) -> TrajectoryGroup:
        raise RunStoppedError("the world is gone")

    async def run() -> None:
        stream = GroupStream(play, groups_per_step=1, max_staleness=1, num_groups=4)
        with pytest.raises(RunStoppedError, match="the world is gone"):
            await stream.take(0)
        await stream.close()
        assert stream.state.pending == (0, 1)

    asyncio.run(run())


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups_per_step"):
        GroupStream(Studio().play, groups_per_step=0, max_staleness=0, num_groups=1)
