"""A training run whose environments are on two servers, one of which is killed, is the run in one process."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from testkit.counting_runs import ENV_FILE, config
from testkit.env_servers import EnvServer, env_server
from testkit.run_records import num_retries, told, weights

from agentgym.remote import channel as channel_module
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.loop import TrainingLoop
from agentgym.trainers.phases.rollouts import Rollouts
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.train import train
from agentgym.trainers.types import Metrics

KILLED_IN_STEP = 1


def settings(**kwargs: str) -> TrainConfig:
    base = config(num_steps=3)
    # equal bits whoever shares a batch: replayed episodes are sampled among others
    return replace(base, env=replace(base.env, kwargs=kwargs), engine=replace(base.engine, batch_invariant=True))


def num_steps_at(server: EnvServer) -> int:
    text = httpx.get(f"{server.http}/metrics", timeout=60).text
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("agentgym_steps_total"))


def kill_in_an_episode(server: EnvServer) -> None:
    before = num_steps_at(server)
    while num_steps_at(server) == before:
        time.sleep(0.002)
    server.kill()


@pytest.mark.slow
def test_it_ends_with_the_same_tokens_rewards_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "PATIENCE_S", 0.5)
    train(settings(), tmp_path / "alone")
    killers: list[threading.Thread] = []
    plain = TrainingLoop.step
    env_id = f"{ENV_FILE}:Counting-v0"
    with env_server(env_id) as first, env_server(env_id) as second:

        async def killing(loop: TrainingLoop, rollouts: Rollouts, clock: Clock) -> Metrics:
            if loop.state.step == KILLED_IN_STEP:
                killers.append(threading.Thread(target=kill_in_an_episode, args=(first,)))
                killers[-1].start()
            return await plain(loop, rollouts, clock)

        monkeypatch.setattr(TrainingLoop, "step", killing)
        train(settings(url=f"{first.url},{second.url}"), tmp_path / "served")
        killers[0].join()
        assert first.process.poll() is not None and second.process.poll() is None
    assert len(killers) == 1
    assert num_retries(tmp_path / "served", KILLED_IN_STEP) >= 1, "the episodes of the killed server"
    expected: list[Any] = told(tmp_path / "alone")
    assert expected and told(tmp_path / "served") == expected
    assert weights(tmp_path / "served") == weights(tmp_path / "alone")
