"""A guest beside the engine that gives the servers their weights: whose weights, which versions, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_vllm import COMPLETIONS, FACTS, UNTRAINED
from testkit.vllm_world import World, run, some_tokens, world

from agentgym.engine import Engine
from agentgym.errors import ClosedError, EngineError
from agentgym.trainers.engines.vllm import server as vllm_server
from agentgym.trainers.engines.vllm.in_flight import ServerState
from agentgym.trainers.engines.vllm.server import ReadOnlyServersEngine
from agentgym.trainers.engines.vllm.weights import Handover
from agentgym.types import Completion


class Shared:
    """Servers, the engine that gives them their weights, and a guest."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.said: list[str] = []
        w.engine.share()
        self.guest = ReadOnlyServersEngine(w.config, FACTS, max_context_tokens=64, say=self.said.append)

    async def train(self, version: int, number: int) -> None:
        """A step of the trainer, and what the ranks do together after it."""
        await self.guest.hold()
        self.guest.adopt(await self.give(version, number))

    async def give(self, version: int, number: int) -> Handover:
        """Weights for the servers; the servers that have them."""
        self.w.number = number
        published = self.w.engine.publish(version)
        servers = await self.w.engine.give(published, is_patient=True)
        return Handover(published=published, servers=servers)

    async def ask(self, session: str = "", **sampling: Any) -> Completion:
        """A completion for the guest."""
        return await self.w.ask(session, self.guest, **sampling)


@asynccontextmanager
async def shared(root: Path, num_servers: int = 1, **config: Any) -> AsyncIterator[Shared]:
    async with world(root, num_servers, **config) as w:
        made = Shared(w)
        try:
            yield made
        finally:
            await made.guest.close()


@pytest.mark.parametrize("way", ["folder", "lora"])
def test_a_guest_samples_from_each_version(way: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path, 2, weight_sync=way) as s:
            assert isinstance(s.guest, Engine)
            for version in (0, 1, 2):
                await s.train(version, 31 + version)
                done = await asyncio.gather(*(s.ask(str(n), seed=n) for n in range(4)), s.w.ask())
                assert {(c.token_ids[0], c.policy_versions[0]) for c in done} == {(31 + version, version)}
                assert s.guest.policy_version == version
            assert await s.guest.score([5, 6], [7, 8]) == (-0.7, -0.8)
            assert s.guest.health().ready == 2 and s.said == []
            assert all(len(server.requests) > 4 for server in s.w.servers), "both are asked"

    run(scenario())


def test_a_guest_sends_nothing_before_it_is_handed_servers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path) as s:
            early = asyncio.create_task(s.ask())
            await asyncio.sleep(0.1)
            assert s.w.servers[0].paths == []
            await s.train(0, 31)
            assert (await early).token_ids[0] == 31
            await s.guest.hold()
            held = asyncio.create_task(s.ask())
            handover = await s.give(1, 32)
            await asyncio.sleep(0.1)
            assert not held.done()
            s.guest.adopt(handover)
            assert ((await held).token_ids[0], (await held).policy_versions[0]) == (32, 1)
            with pytest.raises(EngineError, match="other ranks give the servers their weights"):
                await s.guest.update_weights(2)
            await s.guest.close()
            for call in (s.guest.hold(), s.ask()):
                with pytest.raises(ClosedError):
                    await call

    run(scenario())


def test_requests_of_a_guest_are_kept_and_every_token_has_its_version(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path, request_timeout_s=5.0) as s:
            server = s.w.servers[0]
            await s.train(0, 31)
            server.token_delay_s = 0.05
            early = [asyncio.create_task(s.ask(seed=n)) for n in range(3)]
            early.append(asyncio.create_task(s.w.ask(seed=9)))
            await some_tokens(server, 4)
            server.faults["/collective_rpc"] = "slow"  # an update that takes longer than the requests have left
            await s.train(1, 32)
            server.faults.clear()
            await some_tokens(server, 4)
            await s.train(2, 33)
            for completion in await asyncio.gather(*early):
                assert completion.token_ids == tuple(31 + version for version in completion.policy_versions)
                assert {0, 1, 2} == set(completion.policy_versions)
            assert (s.guest.server_stats.num_kept, s.guest.server_stats.num_moved) == (6, 0)
            assert len(server.requests) - sum("prompt_logprobs" in r for r in server.requests) == 4

    run(scenario())


def test_an_answer_that_comes_while_the_guest_waits_has_its_versions_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path) as s:
            server = s.w.servers[0]
            await s.train(0, 31)
            server.token_delay_s = 0.02
            early = [asyncio.create_task(s.ask(seed=n)) for n in range(3)]
            await some_tokens(server, 3)
            await s.guest.hold()
            handover = await s.give(1, 32)
            await s.w.until(lambda: server.in_flight == 0)  # all are answered
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in early)
            s.guest.adopt(handover)
            for completion in await asyncio.gather(*early):
                assert completion.token_ids == tuple(31 + version for version in completion.policy_versions)
                assert {0, 1} == set(completion.policy_versions)

    run(scenario())


def test_requests_that_may_have_begun_with_either_weights_are_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path) as s:
            server = s.w.servers[0]
            await s.train(0, 31)
            server.faults[COMPLETIONS] = "slow"  # on its way for a second
            late = asyncio.create_task(s.ask())
            scored = asyncio.create_task(s.guest.score([5, 6], [7, 8]))
            await s.w.until(lambda: server.in_flight == 2)
            server.faults.clear()
            await s.train(1, 32)
            assert ((await late).token_ids[0], set((await late).policy_versions)) == (32, {1})
            assert await scored == (-0.7, -0.8)
            stats = s.guest.server_stats
            assert (stats.num_kept, stats.num_moved, stats.num_left_out) == (0, 0, 0)

    run(scenario())


def test_requests_of_a_guest_finish_with_the_weights_they_began_with(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path, in_flight="finish") as s:
            await s.train(0, 31)
            s.w.servers[0].delay_s = 0.2
            early = [asyncio.create_task(s.ask(seed=n)) for n in range(5)]
            await s.w.until(lambda: s.w.servers[0].in_flight == 5)
            await s.train(1, 32)
            assert {(c.token_ids[0], c.policy_versions[0]) for c in await asyncio.gather(*early)} == {(31, 0)}
            assert ((await s.ask()).token_ids[0], s.guest.server_stats.num_left_out) == (32, 0)

    run(scenario())


def test_a_server_that_did_not_take_the_weights_serves_the_guest_once_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path, 2) as s:
            await s.train(0, 31)
            gone = s.w.servers[0]
            await gone.kill()
            await s.train(1, 32)
            assert {(await s.ask(str(n))).token_ids[0] for n in range(4)} == {32}
            await gone.start()
            assert gone.number == UNTRAINED
            await s.w.until(lambda: s.guest.server_stats.num_readmitted == 1)
            num = len(gone.requests)
            assert {c.token_ids[0] for c in await asyncio.gather(*(s.ask(f"x{n}") for n in range(8)))} == {32}
            assert len(gone.requests) >= num + 4
            assert f"vLLM server {gone.url} serves, version 1" in s.said

    run(scenario())


def test_a_server_restarted_between_two_requests_never_answers_a_guest_with_old_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path) as s:
            await s.train(0, 31)
            for _ in range(3):
                await s.w.servers[0].kill()
                await s.w.servers[0].start()
                _, completion = await asyncio.gather(s.w.ask(), s.ask())  # by the first one, the owner notices
                assert (completion.token_ids[0], completion.policy_versions[0]) == (31, 0)

    run(scenario())


def test_a_guest_does_not_believe_a_server_that_computes_with_something_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path, 2) as s:
            bad = s.w.servers[0]
            await s.train(0, 31)
            bad.in_place = 77
            s.guest._pool._leave_out(s.guest._pool.servers[0], "the network was down")
            await s.w.until(lambda: "are not the trainer's" in s.guest.health().fault)
            assert {(await s.ask(str(n))).token_ids[0] for n in range(4)} == {31}
            bad.in_place = None
            await s.w.until(lambda: s.guest.health().ready == 2)

    run(scenario())


def test_what_was_sampled_on_a_server_that_was_not_handed_over_is_asked_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path, 2) as s:
            bad, good = s.w.servers
            await s.train(0, 31)
            for server in s.w.servers:
                server.token_delay_s = 0.02
            early = [asyncio.create_task(s.ask(f"{n}", seed=n)) for n in range(4)]
            await asyncio.gather(some_tokens(bad, 2), some_tokens(good, 2))
            bad.in_place = 77
            await s.train(1, 32)
            for completion in await asyncio.gather(*early):
                assert completion.token_ids == tuple(31 + version for version in completion.policy_versions)
            assert s.said == [f"vLLM server {bad.url} is left out: the rank that gives it weights left it out"]

    run(scenario())


def test_servers_may_sleep_between_rest_and_the_next_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with shared(tmp_path, sleep=True) as s:
            freed: list[bool] = []  # whether a server on this rank's GPU slept when its memory was given back
            monkeypatch.setattr(vllm_server, "free_unused", lambda: freed.append(s.w.servers[0].is_asleep))
            await s.train(0, 31)
            assert (await s.ask()).token_ids[0] == 31
            await s.w.engine.rest()
            await asyncio.sleep(0.2)  # some health checks
            assert s.w.servers[0].is_asleep
            await s.train(1, 32)
            assert ((await s.ask()).token_ids[0], s.guest.server_stats.num_left_out) == (32, 0)
            assert freed[-1]

    run(scenario())


def test_a_guest_can_be_closed_while_it_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shared(tmp_path) as s:
            await s.train(0, 31)
            s.w.servers[0].token_delay_s = 0.05
            asked = asyncio.create_task(s.ask())
            await some_tokens(s.w.servers[0], 1)
            await s.guest.hold()
            assert s.guest._pool.servers[0].state is ServerState.UPDATING
            await s.guest.close()
            with pytest.raises(EngineError, match="closed"):
                await asked

    run(scenario())
