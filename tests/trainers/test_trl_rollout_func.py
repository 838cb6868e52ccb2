"""Our rollouts as TRL's ``rollout_func``: TRL's own credit and loss on the tokens that we sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.spoken_world import Parity, spoken_model

pytest.importorskip("trl")

from trl import GRPOConfig, GRPOTrainer

from agentgym.check.chaos import Chaos
from agentgym.errors import RunStoppedError, UsageError
from agentgym.render.config import ChatConfig
from agentgym.rollout.group import GroupConfig
from agentgym.trainers.trl.environments import task_dataset
from agentgym.trainers.trl.rollout_func import EnvRollouts, episode_return, rollout_dataset


class Watched(GRPOTrainer):  # type: ignore[misc]
    """Keeps what it was given and what reaches the loss."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.given = inputs
        self.reached = super()._generate_and_score_completions(inputs)
        return self.reached


def trained(folder: Path, rollouts: Any, dataset: Any = None, **changes: Any) -> Any:
    model, tokenizer = spoken_model()
    chosen = {
        "per_device_train_batch_size": 12,
        "num_generations": 4,
        "max_completion_length": 5,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        **changes,
    }
    trainer = Watched(
        model,
        reward_funcs=episode_return,
        args=GRPOConfig(output_dir=str(folder / "trl"), **chosen),
        train_dataset=rollout_dataset(Parity, "train", 16) if dataset is None else dataset,
        processing_class=tokenizer,
        rollout_func=rollouts,
    )
    trainer.train()
    rollouts.close()
    return trainer


def rollouts_of(env: Any = Parity, **group: Any) -> EnvRollouts:
    return EnvRollouts(env, group=GroupConfig(num_envs=6, **group), chat=ChatConfig(codec="text"))


def test_trl_trains_on_what_was_sampled(tmp_path: Path) -> None:
    trainer = trained(tmp_path, rollouts_of())
    losses = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    assert len(losses) == 2 and all(norm > 0 for norm in losses)
    reached = trainer.reached
    mask = reached["completion_mask"] * reached["tool_mask"]
    assert 0 < mask.sum() < reached["completion_mask"].sum(), "the environment's tokens are there, and not trained on"
    returns = torch.tensor([row["episode_return"] for row in trainer.given]).view(3, 4)
    expected = (returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-4)
    torch.testing.assert_close(reached["advantages"].view(3, 4), expected, atol=1e-4, rtol=1e-3)


class Kept:
    """Rollouts, and what they returned last."""

    def __init__(self, rollouts: EnvRollouts) -> None:
        self.rollouts, self.close = rollouts, rollouts.close

    def __call__(self, prompts: Any, trainer: Any) -> Any:
        self.last = self.rollouts(prompts, trainer)
        return self.last


def test_the_log_probabilities_are_those_of_the_weights(tmp_path: Path) -> None:
    kept = Kept(rollouts_of())
    trainer = trained(tmp_path, kept, learning_rate=0.0, max_steps=1, temperature=0.8)
    for at in range(12):
        prompt, completion = kept.last["prompt_ids"][at], kept.last["completion_ids"][at]
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            logprobs = (trainer.model(ids).logits[0, len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
        made = logprobs.gather(-1, ids[0, len(prompt) :, None])[:, 0]
        mask = torch.tensor(kept.last["env_mask"][at]).bool()
        torch.testing.assert_close(made[mask], torch.tensor(kept.last["logprobs"][at])[mask], atol=1e-4, rtol=0)
        row = trainer.reached["completion_ids"][at][trainer.reached["completion_mask"][at].bool()]
        assert row.tolist() == completion


def test_a_failure_of_the_infrastructure_has_no_reward_and_no_gradient(tmp_path: Path) -> None:
    rollouts = rollouts_of(lambda: Chaos(Parity(), crash=0.25, seed=3), max_retries=0, max_failure_rate=1.0)
    trainer = trained(tmp_path, rollouts, max_steps=1)
    lost = [at for at, row in enumerate(trainer.given) if row["episode_return"] is None]
    assert 0 < len(lost) < 12
    reached = trainer.reached
    assert not (reached["completion_mask"] * reached["tool_mask"])[lost].any()
    assert not reached["advantages"][lost].any()
    for group in range(3):
        rows = [at for at in range(4 * group, 4 * group + 4) if at not in lost]
        assert abs(float(reached["advantages"][rows].sum())) < 1e-3, "the others are compared among themselves"


def test_prompts_without_a_task_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rollout_dataset"):
        trained(tmp_path, rollouts_of(), task_dataset(Parity, "train", 16))


def test_an_environment_that_does_not_exist_is_refused_before_training() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'agentgym/Household-v0'"):
        EnvRollouts("agentgym/Houshold-v0")
    with pytest.raises(UsageError, match=r"unknown argument of agentgym/Household-v0: 'num_object'"):
        EnvRollouts("agentgym/Household-v0", num_object=3)


def test_too_many_failures_stop_the_run(tmp_path: Path) -> None:
    class Broken(Parity):
        def start(self, task: Any) -> str:
            raise OSError("no world")

    with pytest.raises(RunStoppedError, match="no world"):
        trained(tmp_path, rollouts_of(Broken, max_retries=0))
