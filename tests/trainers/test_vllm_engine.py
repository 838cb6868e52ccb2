"""The engine over vLLM servers, against servers that do everything a server should not."""

from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path
from typing import Any

import pytest
from testkit.fake_vllm import COMPLETIONS, STOP, UNTRAINED
from testkit.vllm_world import SAMPLING, World, run, some_tokens, world

from agentgym.engine import Engine
from agentgym.errors import ClosedError, EngineError
from agentgym.trainers.engines.vllm import in_flight
from agentgym.types import Completion, FinishReason

# ------------------------------------------------------------------------------------------------------ the contract


def test_ids_in_ids_out_with_logprobs_and_versions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            assert isinstance(w.engine, Engine)
            await w.train(3, 41)
            completion = await w.ask()
            assert completion == Completion(
                token_ids=(41, 17, STOP),
                logprobs=(-0.5, -1.5, -2.5),
                policy_versions=(3, 3, 3),
                finish_reason=FinishReason.STOP,
            )
            assert (await w.ask(max_new_tokens=2)).finish_reason is FinishReason.LENGTH
            sent = w.servers[0].requests[-1]
            assert (sent["prompt"], sent["ignore_eos"], sent["stop_token_ids"]) == ([5, 6, 7], True, [STOP])
            assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["seed"]) == (1.0, 1.0, 0, 7)
            assert await w.engine.score([5, 6], [7, 8]) == (-0.7, -0.8)
            assert await w.engine.score([5], []) == ()

    run(scenario())


def test_the_context_is_the_runs_not_the_servers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.train(0, 1)
            full = await w.engine.generate([1] * 64, SAMPLING)
            assert (full.token_ids, full.finish_reason) == ((), FinishReason.LENGTH)
            assert len((await w.engine.generate([1] * 63, SAMPLING)).token_ids) == 1
            for prompt, reason in (([], "empty"), ([1] * 65, "the context holds 64"), ([100], "outside the vocab")):
                with pytest.raises(EngineError, match=reason):
                    await w.engine.generate(prompt, SAMPLING)
            with pytest.raises(EngineError, match="needs 1 more"):
                await w.engine.score([1] * 32, [1] * 32)
            with pytest.raises(EngineError, match="vLLM samples at temperature 0"):
                await w.ask(temperature=0.001)
            assert w.engine.server_stats.num_left_out == 0

    run(scenario())


def test_a_closed_engine_is_closed_and_its_files_are_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.train(0, 1)
            w.servers[0].faults[COMPLETIONS] = "silent"
            asked = asyncio.create_task(w.ask())
            await w.until(lambda: len(w.servers[0].requests) == 2)  # the probe, and this one
            await w.engine.close()
            await w.engine.close()
            with pytest.raises(EngineError, match="closed before the completion was done"):
                await asked
            for call in (w.ask(), w.engine.score([1], [2]), w.engine.update_weights(1), w.engine.connect()):
                with pytest.raises(ClosedError):
                    await call
        assert list(tmp_path.iterdir()) == []

    run(scenario())


@pytest.mark.parametrize("num_steps", range(6))
def test_it_closes_at_whatever_moment_its_keepers_are_woken(num_steps: int, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, health_interval_s=20.0) as w:
            await w.train(3, 41)
            server = w.engine._pool.servers[0]
            await asyncio.sleep(0.05)
            server.wake.set()
            for _ in range(num_steps):
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await w.engine.close()
            assert w.engine._pool._keepers == []

    run(scenario())


def test_it_closes_though_a_failure_takes_the_place_of_the_cancellation(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.train(3, 41)
            began = asyncio.Event()

            async def install(*arguments: object, **more: object) -> str:
                began.set()
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    raise EngineError("the connection was lost") from None
                return ""

            w.sync.install = install  # type: ignore[method-assign]
            training = asyncio.create_task(w.train(4, 42))
            await began.wait()
            async with asyncio.timeout(5):
                await w.engine.close()
            assert w.engine._pool._keepers == []
            training.cancel()

    run(scenario())


def test_a_cancelled_caller_is_cancelled_and_the_server_keeps_its_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.train(0, 1)
            w.servers[0].delay_s = 0.2
            asked = asyncio.create_task(w.ask())
            await w.until(lambda: len(w.servers[0].requests) == 2)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert (await w.ask()).token_ids[0] == 1
            assert w.engine.server_stats.num_left_out == 0

    run(scenario())


def test_without_weights_nothing_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, server_wait_s=0.2) as w:
            await w.engine.connect()
            with pytest.raises(EngineError, match="no weights were published yet"):
                await w.ask()

    run(scenario())


# ------------------------------------------------------------------------------------------------------------ weights


def test_new_weights_reach_every_server_and_salt_the_prefix_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2) as w:
            salts = set()
            for version, number in ((0, 31), (1, 32), (2, 33), (2, 34)):  # a resumed run says a version again
                await w.train(version, number)
                for session in ("a", "b"):
                    completion = await w.ask(session)
                    assert (completion.token_ids[0], completion.policy_versions[0]) == (number, version)
                assert {s.held["checksum"] for s in w.servers} == {w.servers[0].requests[-1]["cache_salt"][2:]}
                salts.add(w.servers[0].requests[-1]["cache_salt"])
            assert len(salts) == 4
            assert len(list(tmp_path.iterdir())) == 2  # older files are gone

    run(scenario())


def test_all_servers_have_the_first_weights_before_the_first_rollout(tmp_path: Path) -> None:
    async def scenario() -> None:
        for connects in (True, False):
            async with world(tmp_path, 3) as w:
                if connects:
                    await w.engine.connect()
                w.servers[2].faults["/health"] = 500
                w.servers[0].faults["/collective_rpc"] = "slow"
                await w.train(0, 31)
                assert [server.number for server in w.servers] == [31, 31, UNTRAINED]

    run(scenario())


def test_adapters_are_swapped_under_a_name_of_their_version(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, weight_sync="lora") as w:
            for version in (0, 1):
                await w.train(version, 31 + version)
                assert (await w.ask()).token_ids[0] == 31 + version
                assert len(w.servers[0].adapters) == 1
                name = w.servers[0].requests[-1]["model"]
                assert re.fullmatch(rf"{w.servers[0].name}-\w{{6}}-v{version}-\w{{8}}", name)
            await w.servers[0].kill()
            await w.servers[0].start()
            assert (await w.ask()).token_ids[0] == 32

    run(scenario())


def test_runs_that_train_adapters_share_a_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path / "first", weight_sync="lora") as first:
            second = World(tmp_path / "second", first.servers, weight_sync="lora")
            for version in (0, 1, 2):
                await first.train(version, 31 + version)
                await second.train(version, 41 + version)
                assert (await first.ask()).token_ids[0] == 31 + version
                assert (await second.ask()).token_ids[0] == 41 + version
            assert len(first.servers[0].adapters) == 2
            assert first.engine.server_stats.num_left_out == second.engine.server_stats.num_left_out == 0
            await second.engine.close()

    run(scenario())


@pytest.mark.parametrize("tells_progress", [True, False], ids=["as configured", "as it cannot keep them"])
def test_requests_in_flight_finish_with_the_weights_they_began_with(tells_progress: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, in_flight="finish" if tells_progress else "auto") as w:
            w.servers[0].tells_progress = tells_progress
            await w.train(0, 31)
            w.servers[0].delay_s = 0.2
            early = [asyncio.create_task(w.ask(seed=n)) for n in range(5)]
            await w.until(lambda: w.servers[0].in_flight == 5)
            await asyncio.gather(w.train(1, 32), *(w.ask(seed=n) for n in range(3)))
            assert {(c.token_ids[0], c.policy_versions[0]) for c in await asyncio.gather(*early)} == {(31, 0)}
            assert ((await w.ask()).token_ids[0], w.engine.server_stats.num_left_out) == (32, 0)
            assert w.engine.server_stats.num_kept == 0
            assert [line for line in w.said if "its workers do not say how far" in line] == [
                f"vLLM server {w.servers[0].url} ends its requests before it takes new weights: its workers do not say "
                "how far these have come"
            ] * (not tells_progress)

    run(scenario())


def test_requests_in_flight_are_kept_and_every_token_has_its_version(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, request_timeout_s=5.0, health_interval_s=60.0) as w:
            server = w.servers[0]
            await w.train(0, 31)
            server.token_delay_s = 0.05
            early = [asyncio.create_task(w.ask(seed=n)) for n in range(4)]
            await some_tokens(server, 4)
            server.faults["/collective_rpc"] = "slow"  # an update that takes longer than the requests have left
            await w.train(1, 32)
            server.faults.clear()
            await some_tokens(server, 4)
            await w.train(2, 33)
            for completion in await asyncio.gather(*early):
                assert completion.token_ids == tuple(31 + version for version in completion.policy_versions)
                assert {0, 1, 2} == set(completion.policy_versions)
            assert (w.engine.server_stats.num_kept, w.engine.server_stats.num_moved) == (8, 0)
            assert f"vLLM server {server.url} keeps its requests while it takes new weights" in w.said
            assert {r["cache_salt"] for r in server.requests[-2:]} != {server.requests[0]["cache_salt"]}

    run(scenario())


def test_requests_that_had_not_begun_and_those_that_score_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "ARRIVAL_S", 0.05)

    async def scenario() -> None:
        async with world(tmp_path) as w:
            server = w.servers[0]
            await w.train(0, 31)
            server.faults[COMPLETIONS] = "slow"  # on its way for a second
            scored = asyncio.create_task(w.engine.score([5, 6], [7, 8]))
            late = asyncio.create_task(w.ask())
            await w.until(lambda: server.in_flight == 2)
            server.faults.clear()
            await w.train(1, 32)
            assert (await late).policy_versions == (1, 1, 1) and (await late).token_ids[0] == 32
            assert await scored == (-0.7, -0.8)
            stats = w.engine.server_stats
            assert (stats.num_kept, stats.num_moved, stats.num_left_out) == (0, 0, 0)

    run(scenario())


def test_what_a_server_sampled_with_weights_it_could_not_prove_is_asked_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2) as w:
            bad, good = w.servers
            await w.train(0, 31)
            for server in w.servers:
                server.token_delay_s = 0.02
            early = [asyncio.create_task(w.ask(f"{n}", seed=n)) for n in range(4)]
            await asyncio.gather(some_tokens(bad, 2), some_tokens(good, 2))
            bad.in_place = 77
            await w.train(1, 32)
            for completion in await asyncio.gather(*early):
                assert completion.token_ids == tuple(31 + version for version in completion.policy_versions)
            assert w.engine.server_stats.num_left_out == 1
            assert bad.going.is_set(), "it is not left paused"

    run(scenario())


def test_a_server_that_a_killed_trainer_left_paused_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.servers[0].going.clear()
            w.servers[0].token_delay_s = 0.001
            await w.train(0, 31)
            assert set((await w.ask()).token_ids) == {31}

    run(scenario())


def test_the_servers_tell_their_load_and_one_that_does_not_is_still_well(tmp_path: Path) -> None:
    page = "\n".join(
        f"vllm:{name} {value}"
        for name, value in {
            "num_requests_waiting": 3,
            "kv_cache_usage_perc": 0.5,
            "num_preemptions_total": 1,
            "prefix_cache_queries_total": 100,
            "prefix_cache_hits_total": 80,
        }.items()
    )

    async def scenario() -> None:
        async with world(tmp_path, 2) as w:
            w.servers[1].faults["/metrics"] = b"not a page of metrics"
            await w.train(0, 31)
            health = w.engine.health()
            assert (health.queued, health.cache_use, health.prefix_hits) == (None, None, None)
            w.servers[0].faults["/metrics"] = page.encode()
            await w.until(lambda: w.engine.health().queued is not None)
            health = w.engine.health()
            assert (health.ready, health.queued, health.cache_use, health.preempted) == (2, 3, 0.5, 1)
            assert (health.prefix_tokens, health.prefix_hits) == (100, 80)
            w.servers[1].faults["/metrics"] = "drop"
            assert {(await w.ask(str(n))).token_ids[0] for n in range(4)} == {31}
            assert w.engine.health().ready == 2 and not w.engine.server_stats.num_left_out

    run(scenario())


def test_a_server_that_does_not_take_the_weights_is_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2) as w:
            await w.train(0, 31)
            w.servers[0].faults["/collective_rpc"] = lambda answer: {"results": [{"error": "the disk is gone"}]}
            await w.train(1, 32)
            assert {(await w.ask(str(n))).token_ids[0] for n in range(6)} == {32}
            assert any("the disk is gone" in line for line in w.said)
            health = w.engine.health()
            assert (health.servers, health.ready, health.running) == (2, 1, 0) and "the disk is gone" in health.fault
            w.servers[0].faults.clear()
            await w.until(lambda: w.servers[0].number == 32)
            await w.until(lambda: w.engine.server_stats.num_readmitted == 1)

    run(scenario())


def test_a_server_that_says_it_loaded_and_holds_something_else_is_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, update_timeout_s=2.0) as w:
            w.servers[0].faults["/collective_rpc"] = lambda answer: {
                "results": [{**w.servers[0].facts, "version": 0, "checksum": "other"}]
            }
            with pytest.raises(
                EngineError, match=r"no vLLM server took the weights of version 0 .* it holds version 0"
            ):
                await w.train(0, 31)
            two = [{**w.servers[0].facts, "version": 0, "checksum": c} for c in "ab"]
            w.servers[0].faults["/collective_rpc"] = lambda answer: {"results": two}
            with pytest.raises(EngineError, match="its workers hold different weights"):
                await w.train(1, 31)

    run(scenario())


def test_a_server_that_another_run_gives_its_weights_is_left_to_that_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path / "first", 2) as first:
            await first.train(3, 31)
            second = World(tmp_path / "second", first.servers[:1])
            await second.train(0, 41)
            await first.until(lambda: first.engine.server_stats.num_left_out == 1)
            assert "another run has given it weights (version 0)" in first.said[-1]
            assert {(await first.ask(str(n))).token_ids[0] for n in range(4)} == {31}
            await first.train(4, 32)
            assert first.engine.server_stats.num_updated == 1
            assert (await second.ask()).token_ids[0] == 41, "it keeps the weights of the second run"
            await second.engine.close()

            third = World(tmp_path / "third", first.servers[1:])
            await third.train(0, 51)
            await first.until(lambda: first.engine.server_stats.num_left_out == 2)
            with pytest.raises(EngineError, match="another run has given it weights"):
                await first.ask()
            with pytest.raises(EngineError, match=r"no vLLM server took .* another run has given it weights"):
                await first.train(5, 33)
            await third.engine.close()

    run(scenario())


def test_a_server_that_computes_with_other_weights_than_it_holds_is_left_out(tmp_path: Path) -> None:
    def stale(answer: Any) -> Any:
        scores = answer["choices"][0].get("prompt_logprobs", [])
        others = [entry and {token: {"logprob": -9.0} for token in entry} for entry in scores]
        return _with(answer, prompt_logprobs=others)

    async def scenario() -> None:
        async with world(tmp_path, 2) as w:
            w.servers[0].faults[COMPLETIONS] = stale
            await w.train(0, 31)
            await asyncio.gather(*(w.ask(str(n)) for n in range(6)))
            assert all("prompt_logprobs" in request for request in w.servers[0].requests)  # probes alone
            assert "computes with something else" in w.engine._pool.reasons()

    run(scenario())


def test_a_server_whose_parameters_are_others_is_left_out_however_alike_it_scores(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, update_timeout_s=2.0) as w:
            await w.train(0, 31)
            w.servers[0].in_place = 31  # what it loads next does not get into place
            with pytest.raises(EngineError, match=r"1 of its 1 parameters are not the trainer's, .* in float32: w"):
                await w.train(1, 32)

    run(scenario())


def test_a_healthy_server_in_bfloat16_serves(tmp_path: Path) -> None:
    """Rounding moves its log-probabilities by more than 0.1 now and then; its parameters prove what it is."""

    def rounded(answer: Any) -> Any:
        scores = answer["choices"][0].get("prompt_logprobs", [])
        moved = [entry and {t: {"logprob": v["logprob"] - 0.17} for t, v in entry.items()} for entry in scores]
        return _with(answer, prompt_logprobs=moved) if scores else answer

    async def scenario() -> None:
        async with world(tmp_path, update_timeout_s=2.0) as w:
            server = w.servers[0]
            server.facts["dtype"], server.faults[COMPLETIONS] = "bfloat16", rounded
            await w.train(0, 31)
            assert w.engine.server_stats.probe_gap == pytest.approx(0.17)
            server.is_packed = True  # with nothing but the scores to go by, that is too much
            with pytest.raises(EngineError, match=r"0\.17 .* above 0\.01 .*1 of its parameters cannot be read"):
                await w.train(1, 32)
            assert w.engine.server_stats.num_hidden_parameters == 1

    run(scenario())


def test_a_server_of_a_dtype_without_evidence_waits_for_the_next_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2, update_timeout_s=2.0) as w:
            await w.engine.connect()
            await w.until(lambda: all(server.model_name for server in w.engine._pool.servers))
            w.servers[0].facts["dtype"] = "float16"
            await w.train(0, 31)
            assert "made ready for float32; it may serve with the next ones" in w.engine._pool.reasons()
            await w.train(1, 32)
            await w.until(lambda: not w.engine._pool.reasons())

    run(scenario())


# ----------------------------------------------------------------------------------------------- servers that fail

BROKEN = {
    "not JSON": b"<html>proxy error</html>",
    "deep": b"[" * 100_000,
    "nothing": lambda answer: None,
    "no choice": lambda answer: {"choices": []},
    "ids missing": lambda answer: _with(answer, token_ids=None),
    "ids out of range": lambda answer: _with(answer, token_ids=[1, 2, 100]),
    "ids are text": lambda answer: _with(answer, token_ids=["1", "2", "3"]),
    "too many": lambda answer: _with(answer, token_ids=[1] * 9, logprobs={"token_logprobs": [-1.0] * 9}),
    "none": lambda answer: _with(answer, token_ids=[], logprobs={"token_logprobs": []}),
    "logprobs missing": lambda answer: _with(answer, logprobs=None),
    "logprobs short": lambda answer: _with(answer, logprobs={"token_logprobs": [-1.0]}),
    "logprobs NaN": lambda answer: _with(answer, logprobs={"token_logprobs": [math.nan] * 3}),
    "logprobs infinite": lambda answer: _with(answer, logprobs={"token_logprobs": [-math.inf] * 3}),
    "logprobs above 0": lambda answer: _with(answer, logprobs={"token_logprobs": [0.5] * 3}),
    "logprobs none": lambda answer: _with(answer, logprobs={"token_logprobs": [None] * 3}),
    "aborted": lambda answer: _with(answer, finish_reason="abort"),
    "ended early": lambda answer: _with(answer, finish_reason="length"),
    "no stop token": lambda answer: _with(answer, token_ids=[1, 3, 4]),
    "beyond the stop token": lambda answer: _with(answer, token_ids=[1, STOP, STOP]),
    "another prompt": lambda answer: _with(answer, prompt_token_ids=[6, 7]),
    "500": 500,
    "503": 503,
    "404": 404,
    "dies in the middle": "drop",
    "never answers": "silent",
    "too slow": "slow",
}


def _with(answer: Any, **changes: Any) -> Any:
    return {"choices": [{**answer["choices"][0], **changes}]}


@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
def test_a_server_that_fails_is_left_out_and_its_requests_move(fault: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        timeout_s = 0.5 if fault in ("silent", "slow") else 20.0
        async with world(tmp_path, 2, request_timeout_s=timeout_s) as w:
            await w.train(0, 31)
            w.servers[0].faults[COMPLETIONS] = fault
            completions = await asyncio.gather(*(w.ask(str(n), seed=n) for n in range(8)))
            assert {c.token_ids for c in completions} == {(31, 10 + n, STOP) for n in range(8)}
            assert w.engine.server_stats.num_left_out >= 1
            assert w.engine.server_stats.num_moved >= 4
            w.servers[0].faults.clear()
            num_before = len(w.servers[0].requests)
            await w.until(lambda: w.engine.server_stats.num_readmitted >= 1)
            await asyncio.gather(*(w.ask(f"later {n}") for n in range(8)))
            assert len(w.servers[0].requests) > num_before + 1

    run(scenario())


@pytest.mark.parametrize("fault", ["silent", "drop", 500, b"junk"], ids=str)
def test_with_no_other_server_it_is_an_engine_error_in_time(fault: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, server_wait_s=0.3, request_timeout_s=0.5) as w:
            await w.train(0, 31)
            w.servers[0].faults[COMPLETIONS] = fault
            with pytest.raises(EngineError, match=r"no vLLM server was ready|completion failed on"):
                await w.ask()
            w.servers[0].faults.clear()
            await w.until(lambda: w.engine.server_stats.num_readmitted == 1)
            assert (await w.ask()).token_ids[0] == 31

    run(scenario())


def test_a_request_that_every_server_refuses_puts_none_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2) as w:
            await w.train(0, 31)
            w.servers[0].faults[COMPLETIONS] = w.servers[1].faults[COMPLETIONS] = 400
            with pytest.raises(EngineError, match="refused the request with 400"):
                await w.ask()
            assert w.engine.server_stats.num_left_out == 0

    run(scenario())


def test_half_open_is_noticed_by_health_and_the_requests_move_before_their_time_is_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2, request_timeout_s=300.0, health_timeout_s=0.5) as w:
            await w.train(0, 31)
            w.servers[0].faults[COMPLETIONS] = w.servers[0].faults["/health"] = "silent"
            completions = await asyncio.gather(*(w.ask(str(n)) for n in range(6)))
            assert {c.token_ids[0] for c in completions} == {31}
            assert any("/health had no answer" in line for line in w.said)

    run(scenario())


def test_one_failed_health_check_is_forgiven(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.train(0, 31)
            w.servers[0].faults["/health"] = 500
            num = len(w.servers[0].paths)
            await w.until(lambda: "/health" in w.servers[0].paths[num:])
            w.servers[0].faults.clear()
            num = len(w.servers[0].paths)
            await w.until(lambda: w.servers[0].paths[num:].count("/health") >= 2)
            assert w.engine.server_stats.num_left_out == 0

    run(scenario())


def test_a_hung_update_ends_in_time_and_the_others_serve(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2, health_timeout_s=0.5, update_timeout_s=1.0) as w:
            await w.train(0, 31)
            w.servers[1].faults["/collective_rpc"] = "silent"
            await w.train(1, 32)
            assert {(await w.ask(str(n))).token_ids[0] for n in range(4)} == {32}
            assert w.servers[1].number == 31

    run(scenario())


# --------------------------------------------------------------------------------------------- servers that restart


def test_a_request_waits_for_an_update_longer_than_for_a_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, server_wait_s=0.1, in_flight="finish") as w:
            await w.train(0, 31)
            w.servers[0].faults["/collective_rpc"] = "slow"
            training = asyncio.create_task(w.train(1, 32))
            await w.until(lambda: "/collective_rpc" in w.servers[0].paths[-1:])
            assert (await w.ask()).token_ids[0] == 32
            await training

    run(scenario())


def test_a_killed_server_comes_back_only_with_the_current_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2) as w:
            await w.train(0, 31)
            for server in w.servers:
                server.delay_s = 0.1
            asked = [asyncio.create_task(w.ask(str(n), seed=n)) for n in range(8)]
            await w.until(lambda: w.servers[0].in_flight == 4)
            await w.servers[0].kill()
            assert {c.token_ids[0] for c in await asyncio.gather(*asked)} == {31}
            await w.train(1, 32)
            await w.servers[0].start()
            assert w.servers[0].number == UNTRAINED
            await w.until(lambda: w.engine.server_stats.num_readmitted == 1)
            num = len(w.servers[0].requests)
            assert {c.token_ids[0] for c in await asyncio.gather(*(w.ask(f"x{n}") for n in range(8)))} == {32}
            assert len(w.servers[0].requests) >= num + 4
            assert w.servers[0].held["version"] == 1

    run(scenario())


def test_a_server_restarted_between_two_requests_never_answers_with_old_weights(tmp_path: Path) -> None:
    """Nobody noticed that it was gone: it refuses the name under which it was known."""

    async def scenario() -> None:
        async with world(tmp_path, health_interval_s=30.0) as w:
            await w.train(0, 31)
            for _ in range(3):
                await w.servers[0].kill()
                await w.servers[0].start()
                completion = await w.ask()
                assert (completion.token_ids[0], completion.policy_versions[0]) == (31, 0)

    run(scenario())


def test_all_servers_gone_and_back_in_time_costs_no_episode(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 2, server_wait_s=20.0) as w:
            await w.train(0, 31)
            for server in w.servers:
                await server.kill()
            asked = asyncio.create_task(w.ask())
            await w.until(lambda: w.engine.server_stats.num_left_out == 2)
            await w.servers[1].start()
            assert (await asked).token_ids[0] == 31

    run(scenario())


# ------------------------------------------------------------------------------------------------------------ routing


def test_sessions_stay_and_new_ones_go_to_the_least_loaded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, 3) as w:
            await w.train(0, 31)
            for server in w.servers:
                server.requests.clear()
                server.delay_s = 0.05
            for _ in range(3):
                await asyncio.gather(*(w.ask(f"s{n}", seed=n) for n in range(9)))
            asked = [{r["seed"] for r in server.requests} for server in w.servers]
            assert [len(seeds) for seeds in asked] == [3, 3, 3]
            assert [len(server.requests) for server in w.servers] == [9, 9, 9]
            for n in range(9):
                await w.engine.release(f"s{n}")
            await w.engine.release("unknown")
            assert [server.num_sessions for server in w.engine._pool.servers] == [0, 0, 0]

    run(scenario())
