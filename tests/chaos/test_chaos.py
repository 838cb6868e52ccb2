"""Random faults at every boundary of training, evaluation and serving, and what must hold after each of them.

No fault becomes a reward, what trains is what the valid members say, each task counts once, and nothing is left behind.
``make chaos`` runs many seeds (``AGENTGYM_CHAOS_SEEDS``), the ordinary tests two.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testkit.corpora import DOCUMENTS
from testkit.counting_runs import config, trained_ordinals, weights
from testkit.fake_openai import FakeOpenAI, completion
from testkit.local_servers import Reply, Seen, serving
from testkit.tiny_models import tiny_model
from testkit.tokenizers_for_tests import trained
from testkit.worlds import Counter

from agentgym.check.chaos import Chaos
from agentgym.check.policies import ScriptedEngine
from agentgym.credit.compose import CreditConfig, credit_groups
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import EngineError, InfrastructureError, RunStoppedError
from agentgym.evals.episodes import read_groups, read_rows
from agentgym.evals.runner import EvalSummary, evaluate
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import MakeAgent, ModelAgent, ScriptedAgent
from agentgym.rollout.folder_lock import LOCK_NAME
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.pulse import PULSE_FILE
from agentgym.rollout.record import append_json_line, read_json_lines
from agentgym.rollout.request import EpisodeLimits
from agentgym.tools.retrieval.client import ClientOptions, RemoteRetriever
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.data.samples import filter_groups
from agentgym.trainers.engines.openai.endpoint import Endpoint
from agentgym.trainers.engines.openai.http import OpenAIClient, endpoint_agents
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.train import train
from agentgym.types import Status, Task, TrajectoryGroup

SEEDS = range(int(os.environ.get("AGENTGYM_CHAOS_SEEDS", "2")))
LIMITS = EpisodeLimits(reset_timeout_s=0.5, step_timeout_s=0.5)
NUM_TASKS = 6


class FailingEngine(ScriptedEngine):
    """An engine that fails in its own way and in ways that no engine should."""

    def __init__(self, answer: Callable[[tuple[int, ...]], list[int]], rng: np.random.Generator, rate: float) -> None:
        super().__init__(answer)
        self._rng, self._rate = rng, rate

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session_id: str = "") -> Any:
        if self._rng.random() < self._rate:
            raise [EngineError("lost"), TimeoutError(), KeyError("logprobs"), RecursionError(), MemoryError()][
                self._rng.integers(5)
            ]
        return await super().generate(prompt_ids, sampling, session_id=session_id)

    async def release(self, session_id: str) -> None:
        if self._rng.random() < self._rate:
            raise EngineError("lost")


def tasks() -> list[Task]:
    return [Task(id=f"t-{number}", split="test", seed=number) for number in range(NUM_TASKS)]


def groups_of(seed: int, rate: float) -> tuple[TrajectoryGroup, ...]:
    """Rollouts of a policy whose words depend on the prompt alone, with faults of environments, tools and engine."""
    tokenizer = trained(CHAT_TEMPLATE)
    renderer = ChatRenderer(tokenizer)
    rng = np.random.default_rng(seed)
    said = [[*tokenizer.encode(f"add: {n}", add_special_tokens=False), renderer.turn_end_ids[0]] for n in (1, 2, 3)]
    attempts: Tally[str] = Tally()

    def make_env() -> Env:
        return Chaos(Counter(), crash=rate, hang=rate / 10, slow=rate / 4, slow_s=0.001, seed=seed, attempts=attempts)

    def make_agent(env: Env, agent_seed: int) -> ModelAgent:
        def answer(prompt: tuple[int, ...]) -> list[int]:
            return said[(sum(prompt) + agent_seed) % 3]

        return ModelAgent(FailingEngine(answer, rng, rate), renderer, SamplingParams(max_new_tokens=32), agent_seed)

    config = GroupConfig(group_size=4, min_valid=1, num_envs=8, max_retries=1, max_failure_rate=1.0, limits=LIMITS)

    async def run() -> tuple[TrajectoryGroup, ...]:
        pool = EnvPool(make_env, config.num_envs)
        groups = await run_groups(list(enumerate(tasks())), pool, make_agent, config, seed=seed)
        await pool.close()
        assert {task for task in asyncio.all_tasks() if not task.done()} == {asyncio.current_task()}
        return groups

    return asyncio.run(run())


@pytest.mark.parametrize("seed", SEEDS)
def test_training_learns_from_the_valid_members_alone(seed: int) -> None:
    sound, faulty = groups_of(seed, 0.0), groups_of(seed, 0.15)
    assert [group.ordinal for group in faulty] == list(range(NUM_TASKS))
    num_failed = 0
    for with_faults, without in zip(faulty, sound, strict=True):
        by_seed = {trajectory.seed: trajectory for trajectory in without.trajectories}
        assert len({trajectory.seed for trajectory in with_faults.trajectories}) == len(with_faults.trajectories)
        for trajectory in with_faults.trajectories:
            if trajectory.status.is_evidence:
                same = by_seed[trajectory.seed]
                assert trajectory.reward == same.reward
                assert [s.token_ids for s in trajectory.segments] == [s.token_ids for s in same.segments]
            else:
                assert trajectory.reward is None and trajectory.success is None
                num_failed += 1
    assert num_failed
    left = [group for group in faulty if group.valid]
    bare = [TrajectoryGroup(ordinal=group.ordinal, task=group.task, trajectories=group.valid) for group in left]
    for estimator in ("grpo", "gigpo"):
        config = CreditConfig(estimator=estimator)
        credit, alone = credit_groups(left, config), credit_groups(bare, config)
        assert np.array_equal(credit.advantage, alone.advantage) and np.isfinite(credit.advantage).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_is_that_of_the_valid_members(seed: int) -> None:
    left = [group for group in groups_of(seed, 0.15) if group.valid]
    bare = [TrajectoryGroup(ordinal=group.ordinal, task=group.task, trajectories=group.valid) for group in left]
    assert sum(len(group.trajectories) for group in left) > sum(len(group.trajectories) for group in bare)
    stepped = []
    for groups in (left, bare):
        model = tiny_model(seed=seed, vocab_size=400)
        verdicts = filter_groups(groups, credit_groups(groups, CreditConfig()), 1, "advantage")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        result = update_policy(model, optimizer, verdicts, LossConfig(), temperature=1.0, max_grad_norm=1.0)
        assert result.metrics["grad_norm"] > 0
        stepped.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
    assert all(torch.equal(weight, stepped[1][name]) for name, weight in stepped[0].items())


def test_a_step_whose_metrics_cannot_be_written_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full for one row: the step is not saved without it, so that the curve has no gap."""
    settings = config(checkpoint_every=2)
    train(settings, tmp_path / "whole")
    name = "agentgym.trainers.reporting.metrics.append_json_line"
    write = pkgutil.resolve_name(name)
    failures: list[int] = []

    def failing(path: Path, row: dict[str, Any]) -> None:
        if row["phase"] == "rl" and row["step"] == 3 and not failures:
            failures.append(3)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, row)

    monkeypatch.setattr(name, failing)
    folder = tmp_path / "faulty"
    with pytest.raises((OSError, RunStoppedError, ExceptionGroup)):
        train(settings, folder)
    train(settings, folder, resume=True)
    rows = [row for row in read_json_lines(folder / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == list(range(1, settings.num_steps + 1))
    assert weights(folder) == weights(tmp_path / "whole")


WRITES = (
    "agentgym.rollout.record.os.replace",
    "agentgym.trainers.checkpoint.save_tree",
    "agentgym.trainers.reporting.metrics.append_json_line",
    "agentgym.evals.episodes.append_json_line",
    "agentgym.trainers.loop.save_model",
)
"""What puts a run's files on the disk."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_training_goes_on_after_faults_of_the_disk(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(checkpoint_every=1, sft=SftConfig(num_demos=160, batch_size=8, checkpoint_every=20))
    train(settings, tmp_path / "whole")
    rng = np.random.default_rng(seed)
    faults: Tally[str] = Tally()

    def failing(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*arguments: Any, **named: Any) -> Any:
            is_timed = any(Path(one).name == PULSE_FILE for one in arguments if isinstance(one, Path))
            if not is_timed and rng.random() < 0.04:
                faults[name] += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(*arguments, **named)

        return attempt

    for name in WRITES:
        monkeypatch.setattr(name, failing(name, pkgutil.resolve_name(name)))
    folder = tmp_path / "faulty"
    for _ in range(100):
        try:
            train(settings, folder, resume=(folder / "config.json").is_file())
        except (OSError, RunStoppedError, ExceptionGroup):
            continue
        break
    assert faults, "no write failed"
    assert weights(folder) == weights(tmp_path / "whole")
    assert trained_ordinals(folder) == trained_ordinals(tmp_path / "whole")
    rows = [row for row in read_json_lines(folder / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["step"] for row in rows] == list(range(1, settings.num_steps + 1))
    assert not list(folder.rglob("*partial*"))


# ------------------------------------------------------------------------------------------------------- evaluation


async def play_all(folder: Path, make_env: Callable[[], Env], make_agent: MakeAgent, **more: Any) -> EvalSummary:
    pool = EnvPool(make_env, 4)
    try:
        return await evaluate(
            tasks(),
            pool,
            make_agent,
            out_dir=folder,
            suite_or_env="Counter",
            policy="oracle",
            seed=0,
            group_config=GroupConfig(
                group_size=1, min_valid=1, num_envs=4, max_retries=1, max_failure_rate=1.0, limits=LIMITS
            ),
            **more,
        )
    finally:
        await pool.close()


def must_be_whole(folder: Path) -> None:
    """Every task counts once, with its trajectory, and nothing else is left."""
    assert sorted(row["task_id"] for row in read_rows(folder)) == [task.id for task in tasks()]
    assert sorted(group.task.id for group in read_groups(folder)) == [task.id for task in tasks()]
    assert {path.name for path in folder.iterdir()} == {
        "episodes.jsonl", "episodes.jsonl.gz", "summary.json", LOCK_NAME,
    }  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_an_evaluation_goes_on_after_faults_of_worlds_disk_and_clock(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    attempts: Tally[str] = Tally()
    threads = threading.active_count()

    def full(path: Path, row: Any) -> None:
        if rng.random() < 0.2:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        append_json_line(path, row)

    monkeypatch.setattr("agentgym.evals.episodes.append_json_line", full)
    monkeypatch.setattr(time, "time", lambda: float(rng.uniform(0, 4e9)))  # the wall clock jumps

    def make_env() -> Env:
        return Chaos(Counter(), crash=0.15, slow=0.05, slow_s=0.001, seed=seed, attempts=attempts)

    summary = None
    for number in range(200):
        try:
            oracle = lambda env, _: ScriptedAgent(lambda _: env.oracle())  # noqa: E731
            summary = asyncio.run(play_all(tmp_path, make_env, oracle, resume=number > 0))
        except (OSError, RunStoppedError, ExceptionGroup):
            continue
        if not summary.num_failed:
            break
    assert summary is not None and (summary.success, summary.num_failed) == (1.0, 0)
    must_be_whole(tmp_path)
    assert threading.active_count() <= threads


ANSWERS: tuple[Any, ...] = (
    500, 429, (200, b"no json"), (200, b"[" * 100_000), (200, {"choices": []}), (200, {"error": {"message": "lost"}}),
    completion("add: 3", finish="error"), (200, {"choices": [{"message": {"content": 7}}]}), (404, "gone"),
)  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fault_of_an_endpoint_is_scored(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    good = completion(None, ("add", json.dumps({"number": 1})))
    server = FakeOpenAI(lambda _: ANSWERS[rng.integers(len(ANSWERS))] if rng.random() < 0.3 else good)

    async def no_wait(seconds: float) -> None:
        pass

    async def run() -> EvalSummary:
        client = OpenAIClient(Endpoint(url=server.url, model="m", num_tries=2), 2, no_wait)
        try:
            return await play_all(tmp_path, Counter, endpoint_agents(client, SamplingParams(max_new_tokens=8)))
        finally:
            await client.close()

    try:
        asyncio.run(run())
    except (RunStoppedError, ExceptionGroup) as error:  # the 404 is the user's to put right, so it ends the run
        assert "knows no model" in str(error) or "no episode" in str(error) or isinstance(error, ExceptionGroup)
    finally:
        server.close()
    for row in read_rows(tmp_path):
        if Status(row["status"]).is_evidence:
            assert row["success"], row
        else:
            assert row["return"] is None and row["success"] is None


# ---------------------------------------------------------------------------------------------------------- serving


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_client_gives_right_answers_or_a_failure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    title = next(iter(DOCUMENTS)).title
    right = json.dumps({"hits": [{"doc_id": "1", "title": title, "snippet": "", "score": 1.0}]})
    wrong = (
        Reply("", 500), Reply("<html>"), Reply(right[: len(right) // 2]), Reply("[" * 100_000), Reply("{}"),
        Reply(b"\xff" * 10), Reply(right, headers={"Content-Encoding": "gzip"}),
    )  # fmt: skip

    def answer(_: Seen) -> Reply:
        return wrong[rng.integers(len(wrong))] if rng.random() < 0.4 else Reply(right)

    with serving(answer) as (url, _):
        client = RemoteRetriever(url, ClientOptions(timeout_s=5.0, num_tries=2, backoff_s=0.0))
        outcomes: Tally[str] = Tally()
        for _ in range(40):
            try:
                (hit,) = client.search("demon", 1)
                assert hit.title == title
                outcomes["right"] += 1
            except InfrastructureError:
                outcomes["failed"] += 1
        client.close()
    assert outcomes["right"] and outcomes["failed"]


# ---------------------------------------------------------------------------------------------------------- signals

WORLD = """
import asyncio
from agentgym import Env, Message, register

class Slow(Env):
    def start(self, task):
        return "Wait."
    async def arespond(self, action):
        await asyncio.sleep(0.02)
        print("played", flush=True)
        self.finish(1.0)
        return "Done."
    def oracle(self):
        return Message("assistant", "wait")

register("Slow-v0", Slow, max_turns=3)
"""


@pytest.mark.parametrize("seed", SEEDS[: max(1, len(SEEDS) // 2)])
def test_a_killed_evaluation_counts_each_task_once(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    (tmp_path / "world.py").write_text(WORLD)
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    begin = ["eval", "world.py:Slow-v0", "--policy", "oracle", "--episodes", "12", "--num-envs", "2"]
    folder = tmp_path / "runs" / "eval-slow-v0-001"
    for number in (signal.SIGKILL, signal.SIGTERM, None):
        words = ["eval", "--resume", str(folder)] if folder.is_dir() else begin
        with subprocess.Popen(
            [sys.executable, "-m", "agentgym", *words], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            if number is not None:
                for _ in range(int(rng.integers(1, 4))):
                    process.stdout.readline()
                process.send_signal(number)
            process.communicate(timeout=60)
    rows = read_rows(folder)
    assert len(rows) == len({row["task_id"] for row in rows}) == 12 and all(row["success"] for row in rows)
    assert process.returncode == 0 and not list(folder.glob("*partial*"))
