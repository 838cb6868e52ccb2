"""A run names a split without tasks before it plays or learns anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.errors import UsageError
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.env import RunEnv

ENV = """
from agentgym import ToolEnv, register, tool
from agentgym.env.tasks import SeededTasks

class Some(ToolEnv):
    '''Say something.'''
    def __init__(self, *, split="train", **kwargs):
        super().__init__(**kwargs)
        self.split = split
    def tasks(self, split):
        return SeededTasks(split, 3 if split == self.split else 0)
    def start(self, task):
        return "Say something."
    @tool
    def say(self, text: str) -> str:
        '''Say it.'''
        self.finish(1.0)
        return "Heard."

register("Some-v0", Some)
"""


def made(file: Path, *overrides: str) -> RunEnv:
    config = apply_overrides(load_recipe("tiny"), [f"env.id={file}:Some-v0", *overrides])
    return RunEnv("", config, lambda make_env: EnvPool(make_env, 1))


def test_splits_without_tasks_are_named_before_the_warm_start(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(ENV)
    with pytest.raises(UsageError, match=r"eval\.split: .*Some-v0 has no tasks in split 'test'; it has train: 3$"):
        made(file)
    with pytest.raises(UsageError, match=r"^\S*Some-v0 has no tasks in split 'train'; it has test: 3$"):
        made(file, "env.kwargs.split=test")
    assert len(made(file, "eval.split=train").eval_tasks) == 3
    assert len(made(file, "num_steps=0").train_tasks) == 3
