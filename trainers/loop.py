"""The training loop, from demonstrations to an evaluated policy.

Everything random is a function of the configuration's seed and a counter, so a run that is killed at any moment and
resumed from its last checkpoint ends with the same weights as one that was not (one device, same machine).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agentgym.credit.compose import credit_groups
from agentgym.credit.state import CreditState
from agentgym.evals.runner import EvalSummary, evaluate
from agentgym.rollout.group import run_groups
from agentgym.rollout.record import GroupRecord, record_path, write_records
from agentgym.rollout.schedule import TaskSchedule
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.checkpoint import Checkpoint, Phase, load_latest_checkpoint, save_checkpoint
from agentgym.trainers.config import TrainConfig
from agentgym.trainers.demos import collect_demos
from agentgym.trainers.metrics import MetricsLog, check_wandb
from agentgym.trainers.model import frozen_copy, save_model
from agentgym.trainers.overrides import save_config
from agentgym.trainers.rollout_metrics import describe_rollouts
from agentgym.trainers.run import Run, TrainResult, check_run_dir
from agentgym.trainers.samples import judge_group
from agentgym.trainers.schedule import learning_rate
from agentgym.trainers.sft import num_sft_steps, sft_rows, sft_steps
from agentgym.trainers.update import update_policy


def train(config: TrainConfig, run_dir: Path, *, resume: bool = False) -> TrainResult:
    """Run a recipe: warm start, evaluation, RL, evaluation; all of it kept in ``run_dir``.

    Args:
        resume: go on from the latest checkpoint of ``run_dir``.

    Raises:
        UsageError: the folder, the model or the environment cannot be used as asked.
        RunStoppedError: the run stopped itself; its folder can be resumed.
    """
    check_run_dir(config, run_dir, resume=resume)
    check_wandb(config.wandb_project)
    loop = _Loop(config, run_dir, resume)
    if not resume:  # only now: what was refused until here leaves no folder behind
        run_dir.mkdir(parents=True, exist_ok=True)
        save_config(config, run_dir / "config.json")
    return asyncio.run(loop.run())


class _Loop:
    def __init__(self, config: TrainConfig, run_dir: Path, resume: bool) -> None:
        self.config, self.run_dir = config, run_dir
        self.checkpoint = load_latest_checkpoint(run_dir) if resume else None
        self.r = Run(config, run_dir)
        self.reference: Any = None
        self.credit_state = CreditState()
        self.success_before: float | None = None
        self.num_trajectories = 0
        self.earlier_wall_s = 0.0
        self.started = time.perf_counter()

    async def run(self) -> TrainResult:
        config = self.config
        with MetricsLog(self.run_dir, config.wandb_project) as self.log:
            self.log.say(f"run folder: {self.run_dir}")
            for warning in config.credit.warnings:
                self.log.say(f"note: {warning}")
            at = await self._restore()
            if config.sft.num_demos and at[0] == "sft":
                await self._warm_start(at[1])
            if at[0] == "sft":
                at = ("rl", 0)
                await self._begin_rl()
            await self._learn(at[1])
            after = await self._evaluate("after", config.num_steps) if config.num_steps else None
            save_model(self.r.model, self.r.tokenizer, self.run_dir / "model")
        await self.r.engine.close()
        await self.r.pool.close()
        return TrainResult(
            run_dir=str(self.run_dir),
            steps=config.num_steps,
            num_trajectories=self.num_trajectories,
            success_before=self.success_before,
            success_after=after.success if after else None,
            wall_s=self._wall_s(),
        )

    # ------------------------------------------------------------------------------------------------------ phases

    async def _warm_start(self, first_step: int) -> None:
        config = self.config.sft
        schedule = TaskSchedule(self.r.train_tasks, derive_seed(self.config.seed, "demo tasks"))
        self.log.begin("demos", config.num_demos)
        demos = await collect_demos(
            schedule.take(0, config.num_demos),
            self.r.pool,
            self.r.renderer,
            noise=config.noise,
            max_context_tokens=self.config.model.max_context_tokens,
            seed=self.config.seed,
            on_episode=lambda _: self.log.advance("demos"),
        )
        rows = sft_rows(demos)
        share = sum(bool(demo.success) for demo in demos) / max(1, len(demos))
        num_tokens = sum(len(row.token_ids) for row in rows) / max(1, len(rows))
        self.log.say(f"{len(demos)} demonstrations, {share:.0%} successful, {num_tokens:.0f} tokens each")
        num_steps = num_sft_steps(config, len(rows))
        self.log.begin("sft", num_steps, first_step)
        steps = sft_steps(self.r.model, self.optimizer, rows, config, self.config.seed, first_step)
        for step, metrics in enumerate(steps, first_step + 1):
            self.log.log("sft", step, metrics)
            if step % self.config.checkpoint_every == 0 and step < num_steps:
                self._save("sft", step)

    async def _begin_rl(self) -> None:
        self.optimizer = self.r.make_optimizer(self.config.optimizer)
        self.reference = frozen_copy(self.r.model) if self.config.loss.kl_coef else None
        await self.r.engine.update_weights(0)
        if self.config.num_steps:
            self.success_before = (await self._evaluate("before", 0)).success
        self._save("rl", 0)

    async def _learn(self, first_step: int) -> None:
        schedule = TaskSchedule(self.r.train_tasks, derive_seed(self.config.seed, "rl tasks"))
        self.log.begin("rl", self.config.num_steps, first_step)
        for step in range(first_step, self.config.num_steps):
            self.log.log("rl", step + 1, await self._rl_step(step, schedule))
            if (step + 1) % self.config.checkpoint_every == 0 or step + 1 == self.config.num_steps:
                self._save("rl", step + 1)

    async def _rl_step(self, step: int, schedule: TaskSchedule) -> dict[str, float]:
        config, clock = self.config, _Clock()

        tasks = schedule.take(step * config.groups_per_step, config.groups_per_step)
        groups = await run_groups(tasks, self.r.pool, self.r.make_actor(), config.group, seed=config.seed)
        clock.lap("rollout")

        credit, result = credit_groups(groups, config.credit, state=self.credit_state)
        self.credit_state = result.state
        verdicts = [
            judge_group(group, group_credit, config.group.min_valid, config.zero_variance_filter)
            for group, group_credit in zip(groups, credit, strict=True)
        ]
        clock.lap("credit")

        records = [GroupRecord(group=v.group, credit=v.credit, dropped=v.dropped) for v in verdicts]
        write_records(record_path(self.run_dir, step), records)
        clock.lap("record")

        rate = learning_rate(config.optimizer, step, config.num_steps)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        update = update_policy(
            self.r.model,
            self.optimizer,
            verdicts,
            config.loss,
            temperature=config.sampling.temperature,
            max_grad_norm=config.optimizer.max_grad_norm,
            reference=self.reference,
        )
        clock.lap("train")

        await self.r.engine.update_weights(step + 1)
        clock.lap("sync")

        self.num_trajectories += sum(len(group.trajectories) for group in groups)
        described = describe_rollouts(verdicts)
        speed = {"tokens_per_s": described["sampled_tokens"] / clock.seconds["time/rollout_s"]}
        return described | update | speed | {"lr": rate} | clock.seconds

    async def _evaluate(self, label: str, step: int) -> EvalSummary:
        config = self.config.eval
        tasks = list(self.r.eval_tasks[: config.num_episodes])
        self.log.begin(f"evaluation {label}", len(tasks))
        summary = await evaluate(
            tasks,
            self.r.pool,
            self.r.make_actor(replace(self.config.sampling, temperature=config.temperature)),
            out_dir=self.run_dir / "eval" / label,
            suite_or_env=self.config.env.id,
            policy=f"{self.config.recipe} {label} RL",
            seed=derive_seed(self.config.seed, "evaluation"),
            group_config=replace(self.config.group, group_size=1, min_valid=1),
            on_episode=lambda _: self.log.advance(f"evaluation {label}"),
        )
        names = ("success", "success_low", "success_high", "mean_return", "mean_turns")
        self.log.log("eval", step, {name: getattr(summary, name) for name in names})
        interval = f"{summary.success_low:.3f} to {summary.success_high:.3f}"
        self.log.say(f"success {label} RL: {summary.success:.3f} ({interval}), {len(tasks)} {config.split} tasks")
        return summary

    # ------------------------------------------------------------------------------------------------- checkpoints

    def _wall_s(self) -> float:
        return self.earlier_wall_s + time.perf_counter() - self.started

    def _save(self, phase: Phase, step: int) -> None:
        checkpoint = Checkpoint(
            phase=phase,
            step=step,
            model=self.r.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            rng=torch.get_rng_state(),
            reference=self.reference.state_dict() if self.reference is not None else None,
            credit_state=self.credit_state.to_dict(),
            success_before=self.success_before,
            num_trajectories=self.num_trajectories,
            wall_s=self._wall_s(),
        )
        save_checkpoint(self.run_dir, checkpoint)

    async def _restore(self) -> tuple[Phase, int]:
        found = self.checkpoint
        phase: Phase = found.phase if found else "sft"
        self.optimizer = self.r.make_optimizer(self.config.sft.optimizer if phase == "sft" else self.config.optimizer)
        self.log.forget_after(phase, found.step if found else 0)
        if found is None:
            return "sft", 0
        self.r.model.load_state_dict(found.model)
        self.optimizer.load_state_dict(found.optimizer)
        torch.set_rng_state(found.rng)
        if found.reference is not None:
            self.reference = frozen_copy(self.r.model)
            self.reference.load_state_dict(found.reference)
        self.success_before, self.num_trajectories = found.success_before, found.num_trajectories
        self.earlier_wall_s = found.wall_s
        self.credit_state = CreditState.from_dict(found.credit_state)
        await self.r.engine.update_weights(found.step if phase == "rl" else 0)
        self.log.say(f"resumed after {phase} step {found.step}")
        return phase, found.step


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[f"time/{name}_s"] = now - self._last
        self._last = now
