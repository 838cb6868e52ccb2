"""Async mode samples from a copy of the model only where the engine reads the trained weights itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym.engine import SamplingParams
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.models.model_shapes import plan_model
from agentgym.trainers.planning.footprint import footprint
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run
from agentgym.trainers.train import train

SHORT = (
    *("env.id=agentgym/GuessNumber-v0", "pipeline.mode=async", "num_steps=3", "sft.num_demos=16", "sft.batch_size=8"),
    *("eval.num_episodes=2", "groups_per_step=2", "group.group_size=2", "zero_variance_filter=off"),
    'loss.regularisers=[{"kind": "entropy", "coef": 0.01}]',
)
VLLM = ("engine.kind=vllm", 'engine.urls=["http://127.0.0.1:9"]')


def config(*more: str) -> TrainConfig:
    return apply_overrides(load_recipe("tiny"), [*SHORT, *more])


@pytest.mark.parametrize(
    ("more", "on_gpu", "is_copied"),
    [
        ((), False, True),
        ((), True, False),  # in bfloat16
        (("engine.dtype=float32",), True, True),
        (("engine.dtype=bfloat16",), False, False),
        (VLLM, False, False),
        ((*VLLM, "engine.weight_sync=ipc"), True, False),
        (("cluster.address=local",), True, True),
        (("pipeline.mode=sync",), False, False),
    ],
)
def test_a_copy_is_made_and_planned_where_the_engine_has_no_weights_of_its_own(
    more: tuple[str, ...], on_gpu: bool, is_copied: bool
) -> None:
    made = config(*more)
    assert made.samples_from_copy(on_gpu=on_gpu) == is_copied
    plan = footprint(made, *plan_model(made.model), 1, on_gpu=on_gpu)
    is_sent = made.engine.weight_sync == "ipc"  # in bfloat16
    assert plan.served_copy == (plan.weights if is_copied else plan.weights // 2 if is_sent else 0)


@pytest.mark.parametrize(("dtype", "is_shared"), [("float32", False), ("bfloat16", True)])
def test_training_changes_nothing_that_is_sampled_from_before_the_update(
    dtype: str, is_shared: bool, tmp_path: Path
) -> None:
    run = Run(config(f"engine.dtype={dtype}"), tmp_path)
    assert (run.policy.served is run.model) == is_shared

    async def scenario() -> list[Any]:
        found = []
        for step in range(3):
            found.append((await run.engine.generate([5, 6, 7], SamplingParams(max_new_tokens=16, seed=1))).logprobs)
            if step == 0:
                with torch.no_grad():
                    for parameter in run.model.parameters():
                        parameter.mul_(1.5)
            else:
                await run.policy.update(1)
        await run.close()
        return found

    before, changed, updated = asyncio.run(scenario())
    assert before == changed != updated


def test_a_run_in_async_mode_learns_without_a_copy(tmp_path: Path) -> None:
    train(config("engine.dtype=bfloat16"), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert len(rows) == 3 and all(row["trained_tokens"] and row["grad_norm"] for row in rows)
    assert rows[0]["logprob_gap_mean"] < 0.02, "of the step whose weights were sampled from"
