"""How actors are looked after: what is seen of their deaths, and what one gets before it is used. Ray is a stand-in."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from agentgym.engine import EngineHealth
from agentgym.errors import EngineError, InfrastructureError
from agentgym.rollout.in_flight import SampledReport
from agentgym.trainers.config.cluster import ClusterConfig
from agentgym.trainers.ray.actor_state import ActorState

ray = pytest.importorskip("ray")

from agentgym.trainers.ray import engines as ray_engines  # noqa: E402
from agentgym.trainers.ray.cluster import lead  # noqa: E402
from agentgym.trainers.ray.engine_client import EngineClient  # noqa: E402
from agentgym.trainers.ray.engines import RayEngine, RemoteEngine  # noqa: E402
from agentgym.trainers.ray.fleet import Fleet, MemberState  # noqa: E402

QUICK = ClusterConfig(
    address="auto", health_interval_s=0.01, health_timeout_s=0.2, start_timeout_s=5.0, wait_s=0.3, num_engines=2
)
DIED = ray.exceptions.RayActorError


class Answer:
    """What ``method.remote()`` gives."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            value = self._make()
        except Exception as error:
            future.set_exception(error)
            return future
        if value is not None:
            future.set_result(value)
        return future  # else it never answers


class Method:
    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def remote(self, *args: Any) -> Answer:
        return Answer(lambda: self._make(*args))


class Actor:
    """A handle, with an actor behind it that can be killed, hang and come back."""

    def __init__(self) -> None:
        self.state, self.is_dead, self.hangs = ActorState(), False, False
        self.loaded: list[int] = []
        self.ping, self.load = Method(self._ping), Method(self._load)

    def _ping(self) -> ActorState | None:
        if self.is_dead:
            raise DIED()
        return None if self.hangs else self.state

    def _load(self, weights: Any, serial: int) -> bool:
        if self.is_dead:
            raise DIED()
        self.loaded.append(weights)
        self.state = replace(self.state, serial=serial)
        return True

    def come_back(self) -> None:
        self.state, self.is_dead, self.hangs = ActorState(), False, False


@pytest.fixture(autouse=True)
def kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that is killed and may be started again is back at once."""
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart=True: None if no_restart else actor.come_back())


async def until(fleet: Fleet, *states: MemberState) -> None:
    assert await fleet.changes.until(lambda: tuple(m.state for m in fleet.members) == states, 5.0)


def test_one_that_died_is_left_out_until_it_is_back_and_counted() -> None:
    async def scenario() -> None:
        actors = [Actor(), Actor()]
        fleet = Fleet("worker", actors, QUICK)
        said: list[str] = []
        fleet.say = said.append
        await fleet.wait_for_one()
        await until(fleet, MemberState.READY, MemberState.READY)
        actors[0].is_dead = True
        await until(fleet, MemberState.OUT, MemberState.READY)
        async with fleet.lend() as first, fleet.lend() as second:
            assert (first.index, second.index) == (1, 1)
        actors[0].come_back()
        await until(fleet, MemberState.READY, MemberState.READY)
        async with fleet.lend() as first, fleet.lend() as second:
            assert {first.index, second.index} == {0, 1}, "the one with the least to do"
        fleet.leave_out(fleet.members[0], "an episode of the one before failed", "another incarnation")
        assert fleet.members[0].state is MemberState.READY
        assert (fleet.stats.num_lost, fleet.stats.num_restarts, fleet.stats.num_hung) == (1, 1, 0)
        assert said[-1] == "worker 0 was started again"
        await fleet.close()

    asyncio.run(scenario())


def test_one_that_hangs_is_killed() -> None:
    async def scenario() -> None:
        actor = Actor()
        fleet = Fleet("worker", [actor], QUICK)
        await fleet.wait_for_one()
        await until(fleet, MemberState.READY)
        actor.hangs = True
        await until(fleet, MemberState.OUT)
        await until(fleet, MemberState.READY)
        assert (fleet.stats.num_lost, fleet.stats.num_restarts, fleet.stats.num_hung) == (1, 1, 1)
        await fleet.close()

    asyncio.run(scenario())


def test_actors_of_another_rank_are_neither_killed_nor_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart=True: killed.append(actor))

    async def scenario() -> None:
        actor = Actor()
        fleet = Fleet("worker", [actor], QUICK, is_ours=False)
        await fleet.wait_for_one()
        await until(fleet, MemberState.READY)
        actor.hangs = True
        await until(fleet, MemberState.OUT)
        actor.come_back()  # its own rank has killed it
        await until(fleet, MemberState.READY)
        assert (fleet.stats.num_lost, fleet.stats.num_restarts) == (1, 1)
        await fleet.close()

    asyncio.run(scenario())
    assert killed == []


def test_each_rank_adapts_its_limit_to_its_own_turns() -> None:
    class Limit:
        def __init__(self) -> None:
            self.follows_reports, self.reports = False, list[tuple[int, float]]()

        def observe_report(self, sampled: SampledReport) -> None:
            self.reports.append((sampled.num_turns, sampled.span_s))

    fleets = [Fleet("worker", [], QUICK) for _ in range(2)]
    limits: list[Any] = [Limit(), Limit()]
    fleets[0].found["a"] = ActorState(incarnation="a", sampled={0: SampledReport(num_turns=1, span_s=0.5)})
    for rank, (fleet, limit) in enumerate(zip(fleets, limits, strict=True)):
        lead(fleet, limit, rank)
        assert limit.follows_reports

    def tell(worker: str, span_s: float, *turns: int) -> None:
        sampled = {rank: SampledReport(num_turns=count, span_s=span_s) for rank, count in enumerate(turns)}
        for fleet in fleets:
            fleet.on_answer(ActorState(incarnation=worker, sampled=sampled))

    tell("a", 1.0, 3)
    tell("a", 2.5, 5, 7)
    tell("b", 4.0, 1, 1)  # it was started again
    assert limits[0].reports == [(2, 0.5), (2, 1.5), (1, 4.0)], "what was played before is not in them"
    assert limits[1].reports == [(7, 2.5), (1, 4.0)]


def test_a_guest_reads_the_engines_load_and_takes_the_version_from_the_first_rank() -> None:
    async def scenario() -> None:
        actors = [Actor(), Actor()]
        for actor in actors:
            actor.state = replace(actor.state, health=EngineHealth(running=2, queued=1))
        engine = RemoteEngine(actors, QUICK, max_context_tokens=8)
        await engine.connect(lambda line: None)
        await until(engine._fleet, MemberState.READY, MemberState.READY)
        await engine.update_weights(3)
        assert (engine.policy_version, engine.health().running, engine.health().queued) == (3, 4, 2)
        assert [actor.loaded for actor in actors] == [[], []], "the first rank sends them"
        assert type(pickle.loads(pickle.dumps(engine))) is EngineClient
        await engine.close()

    asyncio.run(scenario())


def test_when_all_are_dead_whoever_needs_one_is_told_why() -> None:
    async def scenario() -> None:
        actor = Actor()
        fleet = Fleet("worker", [actor], QUICK)
        await fleet.wait_for_one()
        actor.is_dead = True
        await until(fleet, MemberState.OUT)
        with pytest.raises(InfrastructureError, match=r"no worker was ready for 0\.3 s: worker 0: The actor"):
            async with fleet.lend():
                pass
        await fleet.close()

    asyncio.run(scenario())


def test_an_engine_that_comes_back_gets_the_weights_of_now_before_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engines, "pack", lambda model, version, for_vllm: version)
    monkeypatch.setattr(ray, "put", lambda value: value)

    async def scenario() -> None:
        actors = [Actor(), Actor()]
        model: Any = None
        said: list[str] = []
        engine = RayEngine(actors, model, QUICK, max_context_tokens=8, update_timeout_s=1.0)
        await engine.connect(said.append)
        await engine.update_weights(0)
        assert [actor.loaded for actor in actors] == [[0], [0]]
        actors[1].is_dead = True
        await engine.update_weights(1)
        assert engine.policy_version == 1
        assert actors[0].loaded == [0, 1], "one that is dead holds up nobody"
        actors[1].come_back()
        assert actors[1].state.serial == 0
        await until(engine._fleet, MemberState.READY, MemberState.READY)
        assert (actors[1].loaded, actors[1].state.serial) == ([0, 1], 2)
        assert [line.partition(":")[0] for line in said] == ["engine 1 is lost", "engine 1 was started again"]
        for actor in actors:
            actor.is_dead = True
        with pytest.raises(EngineError, match="no engine took the weights of version 2"):
            await engine.update_weights(2)
        await engine.close()

    asyncio.run(scenario())


def test_the_load_of_the_engines_is_that_of_their_last_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engines, "pack", lambda model, version, for_vllm: version)
    monkeypatch.setattr(ray, "put", lambda value: value)

    def report(actor: Actor, **numbers: Any) -> None:
        actor.state = replace(actor.state, health=EngineHealth(**numbers))

    async def told(engine: RayEngine, **expected: Any) -> None:
        for _ in range(500):
            if all(getattr(engine.health(), name) == value for name, value in expected.items()):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(engine.health())

    async def scenario() -> None:
        actors = [Actor(), Actor()]
        model: Any = None
        engine = RayEngine(actors, model, QUICK, max_context_tokens=8, update_timeout_s=1.0)
        await engine.connect(lambda line: None)
        await engine.update_weights(0)
        await told(engine, running=0, queued=None, servers=2, ready=2, prefix_tokens=None)
        report(actors[0], running=3, queued=2, cache_use=0.5, preempted=1, prefix_tokens=10, prefix_hits=4)
        report(actors[1], running=1, queued=0, cache_use=0.75, preempted=0, prefix_tokens=6, prefix_hits=1)
        await told(engine, running=4, queued=2, cache_use=0.75, preempted=1, prefix_tokens=16, prefix_hits=5, fault="")
        actors[0].is_dead = True
        await told(
            engine, running=1, queued=0, ready=1, fault="The actor experienced an error before finishing this task."
        )
        actors[0].come_back()
        report(actors[0], running=2, queued=None, cache_use=None, preempted=0, prefix_tokens=3, prefix_hits=3)
        # what was counted before the loss stays; a number that one engine does not know is unknown
        await told(engine, running=3, queued=None, ready=2, cache_use=0.75, prefix_tokens=19, prefix_hits=8, fault="")
        await engine.close()

    asyncio.run(scenario())
