"""Groups that are complete before all their members are: who counts, who was cut, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from testkit.tokenizers_for_tests import trained
from testkit.worlds import Counter
from virtual_time import run_in_virtual_time

from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.env.env import Env
from agentgym.errors import ConfigError, RunStoppedError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import DemonstrationAgent
from agentgym.rollout.group import GroupConfig, GroupPlayer, check_rollouts
from agentgym.rollout.in_flight import InFlight
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.quorum import Quorum, first_valid
from agentgym.rollout.record import GroupRecord, read_records, write_records
from agentgym.trainers.data.samples import FilteredGroup
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.types import CancelledMember, Message, Observation, Status, Task, TrajectoryGroup


class Timed(Counter):
    """Count, in turns that take the seconds given to the environment; crash on request."""

    def __init__(self, turn_s: float, *, crashes: bool = False) -> None:
        super().__init__()
        self.turn_s, self.crashes = turn_s, crashes

    async def arespond(self, action: Message) -> str | Observation:
        await asyncio.sleep(self.turn_s)
        if self.crashes:
            raise RuntimeError("boom")
        return self.respond(action)


def play(
    envs: Sequence[Timed], quorum: Quorum, *, num_envs: int = 16, max_retries: int = 0
) -> tuple[TrajectoryGroup, float, EnvPool]:
    """A group of two turns per episode over the given environments, in order; the group, the seconds, the pool."""
    renderer = ChatRenderer(trained(CHAT_TEMPLATE))
    left = list(envs)

    def agent(env: Env, seed: int) -> DemonstrationAgent:
        return DemonstrationAgent(lambda _: env.oracle(), renderer, 4096)

    async def run() -> tuple[TrajectoryGroup, float]:
        player = GroupPlayer(
            pool, agent, GroupConfig(group_size=2, num_envs=num_envs, max_retries=max_retries), seed=0, quorum=quorum
        )
        group = await player.play(3, Task(id="t", split="train", seed=0))
        return group, asyncio.get_running_loop().time()

    pool = EnvPool(lambda: left.pop(0), num_envs)
    return *run_in_virtual_time(run()), pool


def seeds(group: TrajectoryGroup) -> list[int]:
    return [t.seed for t in group.trajectories]


def test_the_first_valid_members_complete_a_group_and_the_slow_are_cut() -> None:
    group, seconds, _ = play([Timed(9), Timed(1), Timed(2), Timed(50)], Quorum(num_started=4, num_needed=2))
    assert seconds == 4.0
    assert [t.status for t in group.trajectories] == [Status.COMPLETED] * 2
    whole, _, _ = play([Timed(1)] * 4, Quorum(num_started=4, num_needed=4))
    assert seeds(group) == seeds(whole)[1:3], "members 1 and 2, in order"
    tokens = len(whole.trajectories[0].turns[0].completion.token_ids)
    assert group.cut == (
        CancelledMember(member=0, seed=seeds(whole)[0], reason="slow", num_turns=0, num_sampled_tokens=0),
        CancelledMember(member=3, seed=seeds(whole)[3], reason="slow", num_turns=0, num_sampled_tokens=0),
    )
    later, _, _ = play([Timed(3), Timed(2), Timed(2)], Quorum(num_started=3, num_needed=2))
    assert later.cut == (
        CancelledMember(member=0, seed=seeds(whole)[0], reason="slow", num_turns=1, num_sampled_tokens=tokens),
    )


def test_who_is_done_at_the_same_time_is_surplus_and_who_had_no_place_was_waiting() -> None:
    group, _, _ = play([Timed(1), Timed(1), Timed(1)], Quorum(num_started=3, num_needed=2))
    assert [(cut.member, cut.reason, cut.num_turns) for cut in group.cut] == [(2, "surplus", 2)]
    group, _, _ = play([Timed(1), Timed(1)], Quorum(num_started=3, num_needed=1), num_envs=1)
    assert [(cut.member, cut.reason) for cut in group.cut] == [(1, "slow"), (2, "waiting")]


def test_a_failed_member_does_not_count_and_is_replaced_by_an_extra_one() -> None:
    group, _, _ = play([Timed(1, crashes=True), Timed(2), Timed(3)], Quorum(num_started=3, num_needed=2))
    assert [t.status for t in group.trajectories] == [Status.ENV_ERROR, Status.COMPLETED, Status.COMPLETED]
    assert group.cut == ()


def test_too_few_valid_members_end_the_group_all_the_same() -> None:
    group, _, _ = play([Timed(1, crashes=True)] * 2 + [Timed(2)], Quorum(num_started=3, num_needed=2))
    assert len(group.trajectories) == 3 and len(group.valid) == 1


def test_what_was_cut_is_no_failure_and_its_environment_is_not_used_again() -> None:
    slow = Timed(50)
    group, _, pool = play([slow, Timed(1), Timed(1)], Quorum(num_started=3, num_needed=2))
    check_rollouts([group], GroupConfig(group_size=2, max_failure_rate=0.0))
    with pytest.raises(RunStoppedError):
        lost = replace(group, trajectories=(replace(group.trajectories[0], status=Status.TIMEOUT, error="slow"),))
        check_rollouts([lost], GroupConfig(group_size=2, max_failure_rate=0.0))
    assert slow.is_closed
    assert len(pool._idle) == 2


def test_the_account_of_what_was_cut_is_on_record_and_in_the_metrics(tmp_path: object) -> None:
    from pathlib import Path

    group, _, _ = play([Timed(3), Timed(2), Timed(2), Timed(2)], Quorum(num_started=4, num_needed=2))
    path = Path(str(tmp_path)) / "step.jsonl.gz"
    write_records(path, [GroupRecord(group=group)])
    (again,) = read_records(path)
    assert again.group == group and [cut.reason for cut in again.group.cut] == ["slow", "surplus"]
    credit = credit_groups([group], CreditConfig(estimator="rloo"))
    metrics = describe_rollouts([FilteredGroup(group, credit, None)])
    sampled = sum(len(turn.completion.token_ids) for turn in group.trajectories[0].turns)
    assert (metrics["num_cut"], metrics["cut/slow"], metrics["cut/surplus"], metrics["cut/waiting"]) == (2, 1, 1, 0)
    assert metrics["cut_tokens"] == 1.5 * sampled
    assert metrics["status/aborted"] == 0


def test_what_a_job_raises_stops_the_others() -> None:
    stopped = []

    async def job(seconds: float) -> int:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            stopped.append(seconds)
            raise
        raise ValueError("a slip")

    async def run() -> None:
        with pytest.raises(ValueError, match="a slip"):
            await first_valid([asyncio.ensure_future(job(s)) for s in (1.0, 2.0)], lambda _: True, 1)

    run_in_virtual_time(run())
    assert stopped == [2.0]


def test_a_cancelled_group_leaves_nothing_running() -> None:
    async def run() -> None:
        jobs = [asyncio.ensure_future(asyncio.sleep(s)) for s in (5.0, 6.0)]
        waiting = asyncio.ensure_future(first_valid(jobs, lambda _: True, 2))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert all(job.cancelled() for job in jobs)

    run_in_virtual_time(run())


@pytest.mark.parametrize("sizes", [(4, 5), (4, 0)])
def test_a_quorum_that_cannot_be_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="are needed of 4 that are started"):
        Quorum(num_started=sizes[0], num_needed=sizes[1])


def test_older_groups_get_their_places_first() -> None:
    begun: list[tuple[int, int]] = []

    async def episode(in_flight: InFlight, priority: tuple[int, int]) -> None:
        async with in_flight.slot(priority):
            begun.append(priority)
            await asyncio.sleep(1)

    async def run() -> None:
        in_flight = InFlight(1)
        asks = [(9, 0), (4, 1), (2, 0), (4, 0)]
        jobs = [asyncio.ensure_future(episode(in_flight, ask)) for ask in asks]
        await asyncio.sleep(0.5)
        jobs[3].cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        assert in_flight.num_playing == 0

    run_in_virtual_time(run())
    assert begun == [(9, 0), (2, 0), (4, 1)], "the first was alone; the cancelled one takes no place"
