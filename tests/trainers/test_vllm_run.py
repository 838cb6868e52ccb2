"""Whole runs with ``engine.kind=vllm``, against a server with vLLM's routes that samples from what it is sent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testkit import TESTKIT
from testkit.checkpoints import drop_checkpoint
from testkit.fake_vllm import COMPLETIONS
from testkit.sampling_vllm import CONTEXT, facts_of_run, serving
from transformers import AutoModelForCausalLM

from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides, load_config, save_config
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EvalConfig, TrainConfig
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.models.config import LoraSettings, ModelConfig
from agentgym.trainers.planning.servers import serve_command
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.trainers.train import train
from agentgym.types import Status

ENV_FILE = TESTKIT / "counting_env.py"
NO_SERVER = "http://127.0.0.1:9"


def config(url: str, **engine: Any) -> TrainConfig:
    return replace(
        apply_overrides(load_recipe("tiny"), [f"env.id={ENV_FILE}:Counting-v0", "zero_variance_filter=off"]),
        model=ModelConfig(hidden_size=32, num_layers=1, head_dim=16, vocab_size=320, max_context_tokens=CONTEXT),
        sft=SftConfig(num_demos=160, num_epochs=1, batch_size=8),
        num_steps=4,
        groups_per_step=2,
        group=GroupConfig(group_size=4, num_envs=8),
        eval=EvalConfig(num_episodes=6),
        checkpoint_every=2,
        engine=EngineConfig(kind="vllm", urls=(url,), **engine),
    )


def facts_of(tmp_path: Path) -> dict[str, Any]:
    return facts_of_run(config(NO_SERVER), tmp_path)


def test_a_run_samples_from_its_own_weights_step_by_step(tmp_path: Path) -> None:
    with serving(facts_of(tmp_path)) as server:
        run_dir = tmp_path / "run"
        train(config(server.url), run_dir)
        rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
        assert [row["step"] for row in rows] == [1, 2, 3, 4]
        assert max(row["logprob_gap_max"] for row in rows) < 1e-4
        assert max(row["engine/probe_gap"] for row in rows) < 1e-4
        assert {row["engine/num_left_out"] for row in rows} == {0.0}
        assert server.held["version"] == 4
        assert [path.name for path in (run_dir / "weights").iterdir()] == ["model"]  # to start a server from
        assert AutoModelForCausalLM.from_pretrained(run_dir / "weights" / "model").config.model_type == "qwen3"


def test_a_resumed_run_sends_its_weights_again(tmp_path: Path) -> None:
    with serving(facts_of(tmp_path)) as server:
        run_dir = tmp_path / "run"
        run_dir.mkdir()
        save_config(config(server.url), run_dir / "config.json")
        train(load_config(run_dir / "config.json"), run_dir, resume=True)
        salts = {request["cache_salt"] for request in server.requests}
        assert len(salts) == 5
        drop_checkpoint(run_dir, 4)
        train(load_config(run_dir / "config.json"), run_dir, resume=True)
        assert server.held["version"] == 4


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_model_is_evaluated_before_its_warm_start(sleeps: bool, tmp_path: Path) -> None:
    """Its servers then have the weights of the run's beginning, and later those of the warm start."""
    base = replace(config(NO_SERVER, sleep=sleeps), num_steps=1, eval=EvalConfig(num_episodes=6, base=True))
    with serving(facts_of(tmp_path)) as server:
        urls = replace(base.engine, urls=(server.url,))
        made = replace(base, engine=urls, sft=SftConfig(num_demos=16, num_epochs=1))
        result = train(made, tmp_path / "run")
        assert result.success_base is not None and result.success_before is not None
        salts = [request["cache_salt"] for request in server.requests]
        assert [salt.partition("-")[0] for salt in dict.fromkeys(salts)] == ["0", "0", "1"]


def test_lost_servers_are_no_rewards(tmp_path: Path) -> None:
    """The only server breaks in the middle: its episodes are aborted, without a reward, and nothing hangs."""
    with serving(facts_of(tmp_path)) as server:
        group = GroupConfig(group_size=4, num_envs=8, max_retries=0, max_failure_rate=1.0)
        settings = replace(config(server.url, server_wait_s=0.3, request_timeout_s=5.0), group=group)
        run = Run(settings, tmp_path)

        async def scenario() -> list[Status]:
            await run.engine.update_weights(0)

            def break_down(answer: Any) -> Any:
                return answer if len(server.requests) < 20 else "broken"

            server.faults[COMPLETIONS] = break_down
            tasks = [(n, run.envs[0].train_tasks[n]) for n in range(4)]
            groups = await run_groups(tasks, run.envs[0].pool, run.make_agent(run.envs[0]), group, seed=0)
            episodes = [episode for each in groups for episode in each.trajectories]
            assert all((episode.reward is None) == (not episode.status.is_evidence) for episode in episodes)
            await run.engine.close()
            return [episode.status for episode in episodes]

        statuses = asyncio.run(asyncio.wait_for(scenario(), 60))
        assert Status.ABORTED in statuses


def test_the_run_says_how_to_start_its_server(tmp_path: Path) -> None:
    said: list[str] = []
    run = Run(config(NO_SERVER, start_timeout_s=0.2), tmp_path)
    with pytest.raises(ConfigError, match="no vLLM server can be used"):
        asyncio.run(run.connect_engine(said.append))
    folder = tmp_path / "weights" / "model"
    assert said == [
        f"vLLM server {NO_SERVER}, start it by: agentgym serve-model {folder} --port 9 --max-context-tokens {CONTEXT}"
    ]
    assert (folder / "tokenizer.json").is_file()
    settings = config("http://a:80")
    model = replace(settings.model, lora=LoraSettings(rank=4))
    lora = replace(settings, model=model, engine=replace(settings.engine, weight_sync="lora"))
    assert serve_command("m", "http://a:80", lora).endswith("--port 80 --host a --max-context-tokens 160 --lora-rank 4")


def test_adapters_cannot_be_sent_where_there_are_none() -> None:
    with pytest.raises(ConfigError, match="there are none"):
        config(NO_SERVER, weight_sync="lora")
