"""Servers on the trainer's GPU sleep while it trains, and wake for the next weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from testkit.vllm_world import run, world

from agentgym.errors import ConfigError
from agentgym.trainers.engines.vllm import server


def test_servers_sleep_from_rest_to_the_next_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, num_servers=2, sleep=True) as w:
            await w.train(1, number=41)
            await w.engine.rest()
            assert [server.is_asleep for server in w.servers] == [True, True]
            await asyncio.sleep(0.3)  # several looks at their health wake nobody
            assert [server.is_asleep for server in w.servers] == [True, True]
            await w.train(2, number=42)
            assert [server.is_asleep for server in w.servers] == [False, False]
            assert (await w.ask()).token_ids[0] == 42

    run(scenario())


def test_servers_sleep_from_the_start_and_wake_when_the_trainer_has_given_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with world(tmp_path, sleep=True) as w:
            freed: list[bool] = []
            monkeypatch.setattr(server, "free_unused", lambda: freed.append(w.servers[0].is_asleep))
            await w.engine.connect()
            assert w.servers[0].is_asleep, "the warm start comes first"
            await w.train(1, number=41)
            assert (await w.ask()).token_ids[0] == 41
            await w.engine.rest()
            await w.train(2, number=42)
            assert freed == [True, True]

    run(scenario())


def test_a_server_that_was_started_without_sleep_is_named_at_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, sleep=True) as w:
            w.servers[0].facts["can_sleep"] = False  # vLLM then answers /sleep with 200, and frees nothing
            with pytest.raises(ConfigError, match=r"cannot sleep, which engine.sleep=true needs; start it with"):
                await w.engine.connect()

    run(scenario())


def test_a_server_that_cannot_sleep_is_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, num_servers=2, sleep=True) as w:
            await w.train(1, number=41)
            w.servers[0].faults["/sleep?level=1&mode=wait"] = 500
            await w.engine.rest()
            assert w.engine.server_stats.num_left_out == 1
            assert any("left out: /sleep" in line for line in w.said)

    run(scenario())


def test_one_that_comes_back_while_others_sleep_is_put_to_sleep(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, num_servers=2, sleep=True) as w:
            await w.train(1, number=41)
            await w.engine.rest()
            await w.servers[0].kill()
            await w.until(lambda: w.engine.server_stats.num_left_out == 1)
            await w.servers[0].start()
            assert not w.servers[0].is_asleep, "a server that starts is awake"
            await w.until(lambda: w.servers[0].is_asleep and w.engine.server_stats.num_readmitted == 1)
            assert any("is back, and sleeps until the next weights" in line for line in w.said)
            await w.train(2, number=42)
            assert [server.is_asleep for server in w.servers] == [False, False]
            await w.servers[1].kill()
            assert (await w.ask()).token_ids[0] == 42

    run(scenario())


def test_one_that_an_earlier_trainer_left_asleep_is_woken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, sleep=True) as w:
            w.servers[0].is_asleep = True
            await w.train(1, number=41)
            assert (await w.ask()).token_ids[0] == 41

    run(scenario())
