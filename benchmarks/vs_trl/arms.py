"""One training run of each kind, from the same weights, on the same tasks in the same order."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from datasets import Dataset
from mazes import Setting
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from agentgym.credit.compose import CreditConfig
from agentgym.engine import SamplingParams
from agentgym.registry import make
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.plan import TaskSchedule
from agentgym.rollout.record import read_json_lines
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.train import EnvConfig, EvalConfig, TrainConfig
from agentgym.trainers.loop import TrainingLoop
from agentgym.trainers.models.config import ModelConfig
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.train import train
from agentgym.trainers.trl.environments import environment_factory, episode_return

GROUP_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Settings that all arms share."""

    num_steps: int
    groups_per_step: int
    lr: float
    seed: int
    context_tokens: int
    rows_per_microbatch: int = 0
    """Rows of a micro-batch of TRL, which keeps all its logits: 20 GB for 16 rows of SmolLM2. 0 means all rows of a
    step."""

    @property
    def episodes_per_step(self) -> int:
        """Rollouts of a step."""
        return self.groups_per_step * GROUP_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The results of an arm: its model, and the seconds and tokens of each step."""

    model_dir: Path
    step_s: list[float]
    rollout_s: list[float]
    """Seconds of each step for rollouts and their rewards."""
    sampled: list[float]
    trained: list[float]
    """Sampled tokens with a gradient; our trainer leaves out groups without a difference in reward."""
    cpu_s: float
    """Processor seconds of all steps."""
    load: tuple[float, float]
    """Load average before and after."""

    def summary(self, budget: Budget) -> dict[str, Any]:
        """Return the numbers of the table. Speeds are over all steps except the first, which also warms up."""
        seconds = sum(self.step_s[1:])
        return {
            "step_s_p50": statistics.median(self.step_s[1:]),
            "rollout_s_p50": statistics.median(self.rollout_s[1:]),
            "episodes_per_s": budget.episodes_per_step * len(self.step_s[1:]) / seconds,
            "sampled_tokens_per_s": sum(self.sampled[1:]) / seconds,
            "trained_tokens_per_s": sum(self.trained[1:]) / seconds,
            "sampled_tokens_per_episode": sum(self.sampled) / (budget.episodes_per_step * len(self.sampled)),
            "cpu_s": self.cpu_s,
            "load": self.load,
        }


Arm = Callable[[Setting, Path, Path, Budget], Trained]


def ours(credit: CreditConfig) -> Arm:
    """Train by this trainer with its defaults, except for the settings that all arms share."""

    def run(setting: Setting, start: Path, folder: Path, budget: Budget) -> Trained:
        config = TrainConfig(
            recipe="vs_trl",
            env=EnvConfig(id=setting.env_id, kwargs=setting.kwargs),
            seed=budget.seed,
            model=ModelConfig(path=str(start), max_context_tokens=budget.context_tokens),
            num_steps=budget.num_steps,
            groups_per_step=budget.groups_per_step,
            group=GroupConfig(group_size=GROUP_SIZE, num_envs=budget.episodes_per_step),
            sampling=SamplingParams(max_new_tokens=setting.max_turn_tokens),
            credit=credit,
            optimizer=OptimizerConfig(lr=budget.lr),
            eval=EvalConfig(num_episodes=1),  # all arms are evaluated by the same code, elsewhere
            checkpoint_every=budget.num_steps,
        )
        before = os.getloadavg()[0]
        with _cpu_of_steps() as cpu_s:
            train(config, folder)
        rows = [row for row in read_json_lines(folder / "metrics.jsonl") if row["phase"] == "rl"]
        return Trained(
            model_dir=folder / "model",
            step_s=[sum(value for name, value in row.items() if name.startswith("time/")) for row in rows],
            rollout_s=[row["time/rollout_s"] for row in rows],
            sampled=[row["sampled_tokens"] for row in rows],
            trained=[row["trained_tokens"] for row in rows],
            cpu_s=sum(cpu_s),
            load=(before, os.getloadavg()[0]),
        )

    return run


@contextmanager
def _cpu_of_steps() -> Iterator[list[float]]:
    """Collect the processor seconds of a run's RL steps, without its start, its evaluations and its report.

    TRL's are those of ``trainer.train()``, which has none of these.
    """
    learn, seconds = TrainingLoop.learn, []

    async def timed(self: TrainingLoop) -> None:
        began = time.process_time()
        await learn(self)
        seconds.append(time.process_time() - began)

    with patch.object(TrainingLoop, "learn", timed):
        yield seconds


def trl_factory(setting: Setting, start: Path, folder: Path, budget: Budget) -> Trained:
    """Train by TRL's GRPOTrainer with our environment as its ``environment_factory``."""
    return _with_trl(
        setting,
        start,
        folder,
        budget,
        rows=[{"prompt": [{"role": "user", "content": ""}], **row} for row in _tasks(setting, budget)],
        reward_funcs=episode_return,
        environment_factory=environment_factory(setting.env_id, **setting.kwargs),
        max_tool_calling_iterations=setting.max_turns,
    )


def trl_plain(setting: Setting, start: Path, folder: Path, budget: Budget) -> Trained:
    """Train by TRL's GRPOTrainer without turns: one completion, and a reward function that plays it."""
    env = make(setting.env_id, **setting.kwargs)
    tokenizer = AutoTokenizer.from_pretrained(start)
    renderer = ChatRenderer(tokenizer)
    tasks = env.tasks("train")

    def played(completion_ids: list[list[int]], task_index: list[int], **_: Any) -> list[float]:
        returns = []
        for ids, index in zip(completion_ids, task_index, strict=True):
            env.reset(options={"task": tasks[index]})
            returns.append(float(env.step(renderer.read(ids, env.tools))[1]))
        return returns

    rows = []
    for row in _tasks(setting, budget):
        observation, _ = env.reset(options={"task": tasks[row["task_index"]]})
        ids = renderer.prompt_ids(observation, env.tools)
        rows.append({"prompt": tokenizer.decode(list(ids)), **row})
        assert tokenizer.encode(rows[-1]["prompt"], add_special_tokens=False) == list(ids), "the same prompt"
    return _with_trl(setting, start, folder, budget, rows=rows, reward_funcs=played)


def _tasks(setting: Setting, budget: Budget) -> list[dict[str, Any]]:
    """Return the tasks of our trainer, in its order, as rows of a dataset."""
    tasks = make(setting.env_id, **setting.kwargs).tasks("train")
    schedule = TaskSchedule(tasks, derive_seed(budget.seed, "rl tasks"))
    return [
        {
            "task_id": task.id,
            "task_split": task.split,
            "task_index": int(task.id.rpartition("-")[2]),
            "task_seed": task.seed,
        }
        for _, task in schedule.take(0, budget.num_steps * budget.groups_per_step)
    ]


class _Stopwatch(TrainerCallback):
    """A timer from the beginning of a step, rollouts included, to the end of its optimizer step."""

    def __init__(self) -> None:
        self.step_s: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.step_s.append(time.perf_counter() - self._began)


class TimedGRPOTrainer(GRPOTrainer):
    """TRL's trainer, which also records the seconds of the rollouts of each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rollout_s: list[float] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = time.perf_counter()
        made = super()._generate_and_score_completions(inputs)
        self.rollout_s.append(time.perf_counter() - began)
        return made


def _with_trl(
    setting: Setting,
    start: Path,
    folder: Path,
    budget: Budget,
    *,
    rows: list[dict[str, Any]],
    max_tool_calling_iterations: int | None = None,
    **trl_arguments: Any,
) -> Trained:
    at_once = budget.rows_per_microbatch or budget.episodes_per_step
    arguments = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=budget.episodes_per_step // at_once,
        num_generations=GROUP_SIZE,
        max_completion_length=setting.max_episode_tokens,
        max_tool_calling_iterations=max_tool_calling_iterations,
        max_steps=budget.num_steps,
        shuffle_dataset=False,
        learning_rate=budget.lr,
        lr_scheduler_type="constant",
        adam_beta2=OptimizerConfig().betas[1],
        adam_epsilon=OptimizerConfig().eps,
        gradient_checkpointing=False,  # on by default; it saves memory that is not scarce here
        seed=budget.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(start)
    watch = _Stopwatch()
    trainer = TimedGRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[watch],
        **trl_arguments,
    )
    before, cpu = os.getloadavg()[0], time.process_time()
    trainer.train()
    cpu_s, after = time.process_time() - cpu, os.getloadavg()[0]
    trainer.model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "completions/mean_length" in row]
    sampled = [length * budget.episodes_per_step for length in lengths]
    return Trained(
        model_dir=folder / "model",
        step_s=watch.step_s,
        rollout_s=trainer.rollout_s,
        sampled=sampled,
        trained=sampled,
        cpu_s=cpu_s,
        load=(before, after),
    )
