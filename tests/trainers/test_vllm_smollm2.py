"""SmolLM2 in a real vLLM server: three ways to the same answers, and rollouts that are trained on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import trl
from testkit.own_tokenizers import SMOLLM2, folder, needs
from testkit.smollm2 import IN_BFLOAT16

from agentgym.api.policies import open_agents
from agentgym.evals.config import EvalConfig
from agentgym.ports import free_port
from agentgym.registry import make
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import read_json_lines, read_records
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.engines.vllm.launch import ServeOptions, VllmProcess, find_vllm
from agentgym.trainers.judges.config import JudgeConfig
from agentgym.trainers.judges.judge import Judge
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train
from agentgym.types import Trajectory, TrajectoryGroup

PYTHON = os.environ.get("AGENTGYM_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="needs vLLM's environment: make test-vllm"),
    needs(SMOLLM2),
]
MAX_GAP = 1e-4
NUM_TASKS = 4
GREEDY = EvalConfig(temperature=0.0, max_new_tokens=24, max_context_tokens=1024)
ENV = {"size": 3, "max_turns": 3}


@dataclass(frozen=True)
class Server:
    url: str
    model: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SmolLM2 with the chat template of Qwen2.5, which has the same marks and renders tools."""
    made = tmp_path_factory.mktemp("vllm")
    model = made / "model"
    shutil.copytree(folder(SMOLLM2), model)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    shutil.copy(template, model / "chat_template.jinja")
    options = ServeOptions(
        model=str(model),
        port=free_port(),
        num_threads=1,
        max_context_tokens=1024,
        extra=("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    )
    process = VllmProcess(find_vllm(PYTHON), options, made / "server.log")
    try:
        process.wait_until_ready(900.0)
        yield Server(process.url, model)
    finally:
        process.stop()


def play(policy: str) -> list[Trajectory]:
    """Play a few tasks greedily."""

    async def run() -> list[Trajectory]:
        opened: tuple[MakeAgent, Callable[[], Awaitable[None]]] = await open_agents(policy, GREEDY, 4)
        make_agent, close = opened
        pool = EnvPool(lambda: make("agentgym/Maze-v0", **ENV), 4)
        tasks = list(enumerate(make("agentgym/Maze-v0", **ENV).tasks("test")[:NUM_TASKS]))
        try:
            groups = await run_groups(
                tasks, pool, make_agent, GroupConfig(group_size=1, min_valid=1, num_envs=4), seed=0
            )
        finally:
            await pool.close()
            await close()
        return [group.trajectories[0] for group in groups]

    return asyncio.run(run())


def said(episodes: list[Trajectory]) -> list[list[tuple[str, int]]]:
    """Return what was said turn by turn, with the number of calls."""
    return [[((turn.action.answer or "").strip(), len(turn.action.calls)) for turn in one.turns] for one in episodes]


def test_the_same_answers_from_the_embedded_engine_a_server_and_an_endpoint(server: Server) -> None:
    torch.set_num_threads(1)
    embedded = play(str(server.model))
    served = play(f"vllm:{server.url}?model={server.model}")
    by_parser = play(f"openai:{server.url}/v1")
    assert said(served) == said(embedded)
    assert said(by_parser) == said(embedded)
    assert [one.turns[0].prompt_ids for one in served] == [one.turns[0].prompt_ids for one in embedded]
    pairs = [
        (mine, theirs)
        for one, other in zip(embedded, served, strict=True)
        for turn, same in zip(one.turns, other.turns, strict=True)
        for mine, theirs in zip(turn.completion.logprobs, same.completion.logprobs, strict=True)
    ]
    assert len(pairs) > NUM_TASKS * 10
    assert max(abs(mine - theirs) for mine, theirs in pairs) < MAX_GAP


def test_tools_in_words_through_an_endpoint(server: Server) -> None:
    """The server is not told of tools, and its parser has nothing to read."""
    episodes = play(f"openai:{server.url}/v1?tools=text")
    assert all(one.reward is not None for one in episodes)
    assert all(turn.usage and turn.usage.prompt_tokens > 100 for one in episodes for turn in one.turns)


def test_a_step_with_rollouts_from_the_server(server: Server, tmp_path: Path) -> None:
    changes = ["num_steps=2", "groups_per_step=1", "group.group_size=4", "eval.num_episodes=1", "num_threads=1"]
    config = apply_overrides(load_recipe("smollm2-vllm"), [*changes, f'engine.urls=["{server.url}"]'])
    train(config, tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert max(row["logprob_gap_max"] for row in rows) < MAX_GAP
    assert max(row["engine/probe_gap"] for row in rows) < MAX_GAP
    assert all(row["num_calls"] >= 0 and row["malformed_calls"] >= 0 for row in rows)


def test_a_small_model_learns_what_the_server_says_as_a_teacher(server: Server, tmp_path: Path) -> None:
    changes = [
        *(f"model.path={server.model}", "env.id=agentgym/Maze-v0", f"env.kwargs={json.dumps(ENV)}", "sft.keep=all"),
        *(f"sft.teacher=openai:{server.url}/v1", "sft.num_demos=4", "sft.teacher_max_new_tokens=24"),
        *("sft.num_epochs=3", "sft.batch_size=4", "sft.observation_weight=0"),
        *("sft.optimizer.lr=3e-3", "sft.optimizer.warmup_steps=0"),
        *("model.max_context_tokens=1024", "num_steps=0", "eval.num_episodes=1", "num_threads=1", "group.num_envs=4"),
        *IN_BFLOAT16,
    ]
    train(apply_overrides(load_recipe("finetune"), changes), tmp_path / "run")
    taught = list(read_records(tmp_path / "run" / "demos" / "teacher.jsonl.gz"))
    turns = [turn for record in taught for one in record.group.trajectories for turn in one.turns]
    assert len(taught) == 4 and all(turn.usage and turn.usage.completion_tokens for turn in turns)
    losses = [row["loss"] for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "sft"]
    assert len(losses) == 3, "each step is an epoch, so all are of the same conversations"
    assert losses[2] < losses[1] < losses[0], losses


def test_a_real_server_keeps_to_the_form_of_a_verdict(server: Server, tmp_path: Path) -> None:
    """SmolLM2 is no good judge; the form of its answers is the server's doing."""
    (group,) = [TrajectoryGroup(ordinal=0, task=one.task, trajectories=(one,)) for one in play(str(server.model))[:1]]
    chosen = JudgeConfig(model=f"openai:{server.url}/v1", max_chars=1000, max_new_tokens=250, num_tries=5)

    async def grade() -> tuple[TrajectoryGroup, dict[str, float]]:
        judge = Judge(chosen, tmp_path / "judge.jsonl")
        graded = await judge.graded(group)
        await judge.client.close()
        return graded, judge.take_metrics()

    graded, counts = asyncio.run(grade())
    (episode,) = graded.trajectories
    (row,) = read_json_lines(tmp_path / "judge.jsonl")
    (part,) = [part for turn in episode.turns for part in turn.reward_parts if part.name == "judge"]
    assert [part.value] == row["scores"] and 0 <= part.value <= 1 and counts["judge/tokens"] > 100
