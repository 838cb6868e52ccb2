"""Ranks that share out the servers, each with the weights for its own: who sends, and what is lost with a server."""

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from testkit.fake_vllm import FACTS, VOCAB_SIZE, FakeVllm, evidence_of
from testkit.vllm_world import QUICK, SAMPLING, run

from agentgym.errors import ConfigError, EngineError
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import NO_VERSION
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.engines.vllm.transfer import IpcChannel, TransferSync
from agentgym.trainers.engines.vllm.weights import Handover


class Rank:
    """One rank: its weights (a number), its engine, and what the engine said."""

    def __init__(self, place: int, count: int, config: EngineConfig) -> None:
        self.number, self.said, gpu = 0, list[str](), f"GPU-{place}"
        channel = IpcChannel(gpu, lambda tensor: (gpu, (tensor.item(),)))
        sync = TransferSync(
            lambda: [("w", torch.tensor(float(self.number)))],
            channel,
            lambda ids, dtypes: evidence_of(self.number, ids, dtypes),
            VOCAB_SIZE,
        )
        self.engine = VllmEngine(config, sync, FACTS, max_context_tokens=64)
        self.engine.share(place, count)

    async def connect(self) -> None:
        """Wait for the servers."""
        await self.engine.connect(self.said.append)

    async def asked(self) -> set[int]:
        """What several requests were answered with."""
        calls = (self.engine.generate([5, 6, 7], SAMPLING, session_id=str(n)) for n in range(8))
        return {completion.token_ids[0] for completion in await asyncio.gather(*calls)}


class World:
    """The ranks of a run, and a server on the GPU of each."""

    def __init__(self, servers: list[FakeVllm], num_ranks: int, **config: Any) -> None:
        self.servers = servers
        urls = tuple(server.url for server in servers)
        made = EngineConfig(kind="vllm", urls=urls, weight_sync="ipc", **{**QUICK, **config})
        self.ranks = [Rank(place, num_ranks, made) for place in range(num_ranks)]
        for index, server in enumerate(servers):
            server.gpu = f"GPU-{index % num_ranks}"

    async def train(self, version: int, number: int) -> None:
        """A step, and what the ranks do together after it."""
        for rank in self.ranks:
            rank.number = number
        for server in self.servers:
            server.transfers.clear()
            server.number_to_come = number
        engines = [rank.engine for rank in self.ranks]
        known = await asyncio.gather(*(engine.hold() for engine in engines))
        published = engines[0].publish(version, frozenset().union(*(one.dtypes for one in known)))
        is_patient = not any(one.num_ready for one in known)
        others = pickle.loads(pickle.dumps(published))  # as it arrives at another rank
        calls = (
            engine.give(others if place else published, is_patient=is_patient) for place, engine in enumerate(engines)
        )
        given = await asyncio.gather(*calls)
        for engine in engines:
            engine.adopt(Handover(published=published, servers=dict(pair for part in given for pair in part.items())))

    def senders(self) -> list[list[tuple[str, float]]]:
        """For each server the GPU and the number that the last update brought."""
        bodies = [dict(server.transfers).get("/update_weights") for server in self.servers]
        handles = [pickle.loads(base64.b64decode(b["update_info"]["ipc_handles_pickled"])) if b else [] for b in bodies]
        return [[(gpu, value) for handle in held for gpu, (value,) in handle.items()] for held in handles]


@asynccontextmanager
async def world(num_servers: int = 2, num_ranks: int = 2, **config: Any) -> AsyncIterator[World]:
    made = World([await FakeVllm().start() for _ in range(num_servers)], num_ranks, **config)
    try:
        yield made
    finally:
        await asyncio.gather(*(rank.engine.close() for rank in made.ranks))
        await asyncio.gather(*(server.kill() for server in made.servers))


def test_each_rank_gives_its_share_and_samples_from_all() -> None:
    async def scenario() -> None:
        async with world(num_servers=3) as w:
            await asyncio.gather(*(rank.connect() for rank in w.ranks))
            for version, number in ((0, 31), (1, 32)):
                await w.train(version, number)
                assert w.senders() == [[("GPU-0", number)], [("GPU-1", number)], [("GPU-0", number)]]
                assert len({tuple(server.held.items()) for server in w.servers}) == 1
                for rank in w.ranks:
                    assert (await rank.asked(), rank.engine.policy_version) == ({number}, version)
            assert all(len(server.requests) > 4 for server in w.servers)
            assert [rank.engine.health().ready for rank in w.ranks] == [3, 3]

    run(scenario())


def test_a_lost_server_holds_up_no_rank_and_gets_its_weights_from_its_own_rank_again() -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.train(0, 31)
            gone, rank = w.servers[1], w.ranks[1]
            await gone.kill()
            await w.train(1, 32)
            assert w.senders() == [[("GPU-0", 32)], []]
            assert [one.engine.server_stats.num_updated for one in w.ranks] == [1, 1]
            assert await w.ranks[0].asked() == await rank.asked() == {32}
            await gone.start()
            while [one.engine.health().ready for one in w.ranks] != [2, 2]:
                await asyncio.sleep(0.01)
            assert (w.senders()[1], gone.number) == ([("GPU-1", 32)], 32)
            assert [one.engine.server_stats.num_readmitted for one in w.ranks] == [1, 1]

    run(scenario())


def test_a_server_that_is_not_there_at_the_start_is_named_by_its_rank() -> None:
    async def scenario() -> None:
        async with world(num_servers=3) as w:
            await w.servers[2].kill()
            await asyncio.gather(*(rank.connect() for rank in w.ranks))
            (said,) = w.ranks[0].said
            assert said.startswith(f"vLLM server {w.servers[2].url} does not serve yet: ")
            assert w.ranks[1].said == []
            await w.train(0, 31)
            assert [rank.engine.server_stats.num_updated for rank in w.ranks] == [2, 2]
            await w.servers[2].start()
            while f"vLLM server {w.servers[2].url} serves, version 0" not in w.ranks[0].said:
                await asyncio.sleep(0.01)

    run(scenario())


def test_without_any_server_the_ranks_wait_for_one_and_then_stop() -> None:
    async def scenario() -> None:
        async with world() as w:
            await w.train(0, 31)
            await asyncio.gather(*(server.kill() for server in w.servers))
            while any(rank.engine.health().ready for rank in w.ranks):
                await asyncio.sleep(0.01)
            back = asyncio.create_task(w.servers[1].start())
            waiting = asyncio.create_task(w.train(1, 32))
            await back
            while w.servers[1].held["version"] != 1:
                await asyncio.sleep(0.01)
            await w.servers[0].start()  # the other rank waits for its own
            await waiting
            assert await w.ranks[0].asked() == {32}

        async with world(update_timeout_s=0.5) as w:
            await w.train(0, 31)
            await asyncio.gather(*(server.kill() for server in w.servers))
            while any(rank.engine.health().ready for rank in w.ranks):
                await asyncio.sleep(0.01)
            with pytest.raises(EngineError, match=r"no vLLM server took the weights of version 1: http.*http"):
                await w.train(1, 32)

    run(scenario())


@pytest.mark.parametrize(("gpus", "found"), [("GPU-0", "GPU-0"), ("GPU-1 GPU-2", "GPU-1, GPU-2")])
def test_a_server_on_another_gpu_is_refused_by_the_rank_that_would_send(gpus: str, found: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            w.servers[1].gpu = gpus
            await w.ranks[0].connect()
            with pytest.raises(ConfigError, match=f"on GPU {found}, .*ipc reaches GPU GPU-1 alone.*CUDA_VISIBLE_DEV"):
                await w.ranks[1].connect()

    run(scenario())


def test_each_rank_puts_its_servers_to_sleep() -> None:
    async def scenario() -> None:
        async with world(sleep=True) as w:
            await asyncio.gather(*(rank.connect() for rank in w.ranks))
            for version, number in ((0, 31), (1, 32)):
                await w.train(version, number)
                assert [await rank.asked() for rank in w.ranks] == [{number}, {number}]
                await w.ranks[0].engine.rest()
                assert [server.is_asleep for server in w.servers] == [True, False]
                await w.ranks[1].engine.rest()
                assert [server.is_asleep for server in w.servers] == [True, True]

    run(scenario())


def test_servers_of_one_dtype_that_only_one_rank_has_asked_are_sent_it() -> None:
    async def scenario() -> None:
        async with world() as w:
            for server in w.servers:
                server.facts["dtype"] = "bfloat16"
            await asyncio.gather(*(rank.connect() for rank in w.ranks))
            await w.train(0, 31)
            names = [dict(server.transfers)["/update_weights"]["update_info"]["dtype_names"] for server in w.servers]
            assert names == [["bfloat16"], ["bfloat16"]]
            assert all(server.held["version"] != NO_VERSION for server in w.servers)

    run(scenario())
