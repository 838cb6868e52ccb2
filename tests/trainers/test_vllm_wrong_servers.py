"""Servers that a run cannot use, and settings of servers that cannot be, are named at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from testkit.vllm_world import run, world

from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.wire import ServerFaultError, read_completion
from agentgym.types import Completion


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"facts": {"hidden_size": 16}}, "serves another model: its hidden_size is 16, this run's is 8"),
        ({"facts": {"vllm_version": "0.34.1"}}, "is vLLM 0.34.1, and this needs 0.26 to 0.33: pip install"),
        ({"facts": {"vllm_version": None}}, "is vLLM of an unknown version, and this needs 0.26 to 0.33"),
        ({"facts": {"logprobs_mode": "raw_logprobs"}}, "started with --logprobs-mode raw_logprobs"),
        ({"max_model_len": 32}, "has a context of 32 tokens, this run needs 64; start it with --max-context-tokens 64"),
        ({"fixed_name": "policy"}, "serves 'policy' and was not started by agentgym serve-model"),
    ],
    ids=["model", "too new", "no version", "logprobs", "context", "by hand"],
)
def test_a_wrong_server_is_named_at_the_start(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            for name, value in change.items():
                setattr(w.servers[0], name, {**w.servers[0].facts, **value} if name == "facts" else value)
            with pytest.raises(ConfigError, match=reason):
                await w.engine.connect()

    run(scenario())


@pytest.mark.parametrize(
    ("way", "option"),
    [("lora", "--lora-rank RANK"), ("ipc", "--weight-transfer ipc"), ("nccl", "--weight-transfer nccl")],
)
def test_a_server_that_was_not_started_for_a_way_to_send_weights_is_named(
    way: str, option: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with world(tmp_path, weight_sync=way) as w:
            w.servers[0].facts["takes"] = [other for other in ("lora", "ipc", "nccl") if other != way]
            with pytest.raises(ConfigError, match=f"not started for engine.weight_sync={way}; start it with {option}"):
                await w.engine.connect()

    run(scenario())


def test_an_older_serve_model_does_not_say_what_it_takes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, weight_sync="lora") as w:
            del w.servers[0].facts["takes"]
            await w.engine.connect()
            await w.train(1, number=41)
            assert (await w.ask()).token_ids[0] == 41

    run(scenario())


def test_no_server_at_the_start_is_said_with_its_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, start_timeout_s=0.3) as w:
            await w.servers[0].kill()
            with pytest.raises(ConfigError, match=r"no vLLM server can be used after 0.3 s: .*connect"):
                await w.engine.connect()

    run(scenario())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"urls": ("http://a:1",)}, "set engine.kind=vllm too"),
        ({"kind": "vllm", "urls": ("a:1",)}, "expected http://HOST:PORT"),
        ({"kind": "vllm", "urls": ("http://a:1/v1",)}, "expected http://HOST:PORT"),
        ({"kind": "vllm", "urls": ("http://a:1", "http://a:1/")}, "twice"),
        ({"sleep": True}, "^engine.sleep is a setting of vLLM servers; set engine.kind=vllm too$"),
        ({"weight_sync": "ipc", "in_flight": "finish"}, "engine.weight_sync, engine.in_flight are settings of vLLM"),
        ({"kind": "vllm", "urls": ("http://a:1",), "dtype": "bfloat16"}, "engine.dtype is a setting of the embedded"),
        ({"kind": "vllm", "urls": ("http://a:1",), "compile": False}, "engine.compile .* set engine.kind=torch"),
        ({"request_timeout_s": 0}, "must be above 0"),
        ({"max_attempts": 0}, "at least 1"),
    ],
)
def test_configurations_that_cannot_be(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        EngineConfig(**values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token_ids": [5, True]}, "a token id outside the vocabulary"),
        ({"prompt_token_ids": [True]}, "another prompt"),
        ({"logprobs": {"token_logprobs": [-0.1, False]}}, "log-probabilities are not one finite number"),
    ],
)
def test_true_is_no_token_id_and_no_number(change: dict[str, Any], reason: str) -> None:
    logprobs = {"token_logprobs": [-0.1, -0.7]}
    sound = {"token_ids": [5, 1], "prompt_token_ids": [1], "logprobs": logprobs, "finish_reason": "stop"}

    def read(choice: dict[str, Any]) -> Completion:
        sampling = SamplingParams(stop_token_ids=(1,))
        return read_completion(
            {"choices": [choice]}, prompt_ids=[1], sampling=sampling, max_new_tokens=8, vocab_size=10, version=3
        )

    assert read(sound).token_ids == (5, 1)
    with pytest.raises(ServerFaultError, match=reason):
        read({**sound, **change})
