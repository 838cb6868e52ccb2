"""The training loop, from demonstrations to an evaluated policy.

Everything random is a function of the configuration's seed and a counter, so a run that is killed at any moment and
resumed from its last checkpoint ends with the same weights as one that was not (one device, same machine).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from agentgym.credit.columns import split_columns
from agentgym.credit.compose import credit_groups
from agentgym.credit.state import CreditState
from agentgym.evals.runner import EvalSummary, evaluate
from agentgym.rollout.group import GroupPlayer, check_failure_rate
from agentgym.rollout.record import record_path, write_records
from agentgym.rollout.schedule import TaskSchedule
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.stream import GroupStream, StreamState
from agentgym.trainers.config.overrides import save_config
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.demos import collect_demos
from agentgym.trainers.data.samples import judge_groups
from agentgym.trainers.distributed.checkpoint import Checkpoint, Phase, load_latest_checkpoint, save_checkpoint
from agentgym.trainers.distributed.ranks import Ranks, join_ranks, leave_ranks
from agentgym.trainers.distributed.sharding import load_optimizer, load_weights, whole
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.models.model import frozen_copy, save_model
from agentgym.trainers.models.quantized import kept_state
from agentgym.trainers.phases.period import Period
from agentgym.trainers.phases.schedule import learning_rate
from agentgym.trainers.phases.sft import num_sft_steps, sft_rows, sft_steps
from agentgym.trainers.phases.update import PartialUpdate, update_policy
from agentgym.trainers.reporting.activity import Activity
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.reporting.metrics import MetricsLog, SilentLog, check_wandb
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.trainers.run import Run, TrainResult, check_ranks, check_run_dir
from agentgym.trainers.scoring.answers import check_references
from agentgym.trainers.scoring.columns import ColumnMaker
from agentgym.types import TrajectoryGroup


def train(config: TrainConfig, run_dir: Path, *, resume: bool = False) -> TrainResult:
    """Run a recipe: warm start, evaluation, RL, evaluation; all of it kept in ``run_dir``.

    Started by torchrun, the model is cut up over its processes, and the first of them plays, logs and saves.

    Args:
        resume: go on from the latest checkpoint of ``run_dir``, which any number of processes may have written.

    Raises:
        UsageError: the folder, the model or the environment cannot be used as asked.
        RunStoppedError: the run stopped itself; its folder can be resumed.
    """
    ranks = join_ranks()
    check_ranks(config, ranks)
    if ranks.is_main:
        check_run_dir(config, run_dir, resume=resume)
        check_wandb(config.wandb_project)
    loop = TrainingLoop(config, run_dir, resume, ranks)
    if not resume and ranks.is_main:  # only now: what was refused until here leaves no folder behind
        run_dir.mkdir(parents=True, exist_ok=True)
        save_config(config, run_dir / "config.json")
    try:
        return asyncio.run(loop.run())
    finally:
        loop.r.leave_cluster()
        leave_ranks()


class TrainingLoop:
    """One run from its start, or its latest checkpoint, to its end; :func:`train` makes and runs it.

    Args:
        run_dir: the run's folder; it is there before :meth:`run`.
        ranks: the processes that train together. All go through the same phases; the first alone plays, logs and saves.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, resume: bool, ranks: Ranks = Ranks()) -> None:  # noqa: B008
        self.config, self.run_dir, self.ranks = config, run_dir, ranks
        self.checkpoint = load_latest_checkpoint(run_dir) if resume else None
        self.r = Run(config, run_dir, ranks)
        self.reference: Any = None
        self.credit_state = CreditState()
        self.entropy_history = EntropyHistory()
        self.activity = Activity(config.loss)
        self.stream_state: StreamState | None = None
        self.in_flight = config.pipeline.in_flight(config.group)
        if "answer_logprobs" in config.credit.columns():
            check_references(self.r.train_tasks)
        self.columns = ColumnMaker(config, self.r.model, self.r.renderer)
        self.success_before: float | None = None
        self.num_trajectories = 0
        self.earlier_wall_s = 0.0
        self.started = time.perf_counter()

    async def run(self) -> TrainResult:
        """All phases that are left; successes are known to the first rank alone."""
        config = self.config
        with MetricsLog(self.run_dir, config.wandb_project) if self.ranks.is_main else SilentLog() as self.log:
            self.log.say(f"run folder: {self.run_dir}")
            for warning in config.warnings:
                self.log.say(f"note: {warning}")
            await self.r.connect_engine(self.log.say)
            at = await self._restore()
            if config.sft.num_demos and at[0] == "sft":
                await self._warm_start(at[1])
            if at[0] == "sft":
                at = ("rl", 0)
                await self._begin_rl()
            await self._learn(at[1])
            after = await self._evaluate("after", config.num_steps) if config.num_steps else None
            model = self.r.whole_model()
            if self.ranks.is_main:
                save_model(model, self.r.tokenizer, self.run_dir / "model", config.context)
        await self.r.close()
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
        demos = await self.ranks.from_main(
            lambda: collect_demos(
                schedule.take(0, config.num_demos),
                self.r.pool,
                self.r.renderer,
                noise=config.noise,
                max_context_tokens=self.config.model.max_context_tokens,
                max_new_tokens=self.config.sampling.max_new_tokens,
                context=self.config.context,
                seed=self.config.seed,
                on_episode=lambda _: self.log.advance("demos"),
            )
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
        self.reference = frozen_copy(self.r.model) if self.config.loss.regulariser("kl") else None
        self.columns.begin()
        await self.r.update_engine(0)
        if self.config.num_steps:
            before = await self._evaluate("before", 0)
            self.success_before = before.success if before else None
        self._save("rl", 0)

    async def _learn(self, first_step: int) -> None:
        self.stream = self._make_stream(first_step)
        self.log.begin("rl", self.config.num_steps, first_step)
        try:
            for step in range(first_step, self.config.num_steps):
                if step and self.config.eval.every and step % self.config.eval.every == 0:
                    await self._evaluate(f"step-{step:06d}", step)
                metrics = await self._rl_step(step)
                for line in self.activity.watch(step + 1, metrics):
                    self.log.say(line)
                self.log.log("rl", step + 1, metrics | self.activity.metrics())
                if (step + 1) % self.config.checkpoint_every == 0 or step + 1 == self.config.num_steps:
                    self._save("rl", step + 1)
        finally:
            await self.stream.close()

    def _make_stream(self, first_step: int) -> GroupStream:
        config = self.config
        schedule = TaskSchedule(self.r.train_tasks, derive_seed(config.seed, "rl tasks"))
        player = GroupPlayer(
            self.r.pool,
            self.r.make_actor(),
            config.group,
            seed=config.seed,
            quorum=config.pipeline.quorum(config.group),
            in_flight=self.in_flight,
        )

        return GroupStream(
            lambda ordinal: player.play(ordinal, schedule.task(ordinal)),
            groups_per_step=config.groups_per_step,
            max_staleness=config.pipeline.bound,
            num_groups=config.num_steps * config.groups_per_step,
            state=self.stream_state or StreamState(next_ordinal=first_step * config.groups_per_step),
        )

    async def _rl_step(self, step: int) -> dict[str, float]:
        clock = Clock()
        mode = self.config.pipeline.mode
        if mode != "async":  # nothing was played while the step before was trained
            self.in_flight.begin_window()
        period = self._begin_period() if mode == "periodic" else None
        groups = await self.ranks.from_main(
            lambda: self.stream.take(step) if period is None else self._train_as_they_come(period, step, clock)
        )
        check_failure_rate(groups, self.config.group)
        clock.lap("rollout")

        if mode == "async":  # beside the rollouts, which go on in this thread
            metrics = await asyncio.to_thread(self._train_on, groups, step, clock)
        else:
            await self.r.rest_engine()
            metrics = self._train_on(groups, step, clock, period)

        await self.r.update_engine(step + 1)
        clock.lap("sync")

        self.num_trajectories += sum(len(group.trajectories) for group in groups)
        waited_s = clock.seconds["time/rollout_s"]
        playing_s = waited_s if mode == "sync" else sum(clock.seconds.values())
        ahead = self.stream.state.next_ordinal - self.stream.state.num_taken
        speed = {
            "tokens_per_s": metrics["sampled_tokens"] / playing_s,
            "groups_ahead": float(ahead),
            "in_flight_limit": float(self.in_flight.limit),
        }
        return metrics | speed | clock.seconds | self.r.engine_metrics()

    def _begin_period(self) -> Period:
        config = self.config
        update = PartialUpdate(
            self.r.model,
            self.optimizer,
            config.loss,
            temperature=config.sampling.temperature,
            max_grad_norm=config.optimizer.max_grad_norm,
            reference=self.reference,
            history=self.entropy_history,
        )
        return Period(config, self.credit_state, update)

    async def _train_as_they_come(self, period: Period, step: int, clock: Clock) -> tuple[TrajectoryGroup, ...]:
        """A step's groups by ordinal; their gradients are taken beside the rollouts, which go on in this thread."""
        groups: list[TrajectoryGroup] = []
        async for done in self.stream.arrivals(step):
            clock.lap("rollout")
            await asyncio.to_thread(period.add, done)
            clock.lap("train")
            groups += done
        return tuple(sorted(groups, key=lambda group: group.ordinal))

    def _train_on(
        self, groups: Sequence[TrajectoryGroup], step: int, clock: Clock, period: Period | None = None
    ) -> dict[str, float]:
        """From a step's groups (or the gradient a period took of them) to new weights; gives the step's metrics."""
        config = self.config
        made = self.columns.make(groups)
        clock.lap("columns")

        result = credit_groups(groups, config.credit, columns=made.columns, state=self.credit_state)
        self.credit_state = result.state
        for line in self.activity.say_once(result.warnings):
            self.log.say(line)
        verdicts = judge_groups(groups, result, config.group.min_valid, config.zero_variance_filter)
        clock.lap("credit")

        records = [
            verdict.to_record(columns)
            for verdict, columns in zip(verdicts, split_columns(made.columns, groups), strict=True)
        ]
        if self.ranks.is_main:
            write_records(record_path(self.run_dir, step), records)
        clock.lap("record")

        learnt = self.columns.learn(groups, result)
        clock.lap("critic")

        rate = learning_rate(config.optimizer, step, config.num_steps)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        update = (
            period.finish(verdicts)
            if period is not None
            else update_policy(
                self.r.model,
                self.optimizer,
                verdicts,
                config.loss,
                temperature=config.sampling.temperature,
                max_grad_norm=config.optimizer.max_grad_norm,
                reference=self.reference,
                history=self.entropy_history,
                seed=derive_seed(config.seed, "updates", step),
            )
        )
        self.entropy_history = update.history
        clock.lap("train")

        of_credit = {f"credit/{name}": value for name, value in result.diagnostics.items()}
        described = describe_rollouts(verdicts, version=step)
        return described | of_credit | made.metrics | learnt | update.metrics | {"lr": rate}

    async def _evaluate(self, label: str, step: int) -> EvalSummary | None:
        """An evaluation, on the rank that plays."""
        if not self.ranks.is_main:
            return None
        config = self.config.eval
        tasks = list(self.r.eval_tasks[: config.num_episodes])
        self.log.begin(f"evaluation {label}", len(tasks))
        summary = await evaluate(
            tasks,
            self.r.eval_pool,
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
        when = f"{label} RL" if label in ("before", "after") else f"after {step} steps"
        self.log.say(f"success {when}: {summary.success:.3f} ({interval}), {len(tasks)} {config.split} tasks")
        return summary

    # ------------------------------------------------------------------------------------------------- checkpoints

    def _wall_s(self) -> float:
        return self.earlier_wall_s + time.perf_counter() - self.started

    def _save(self, phase: Phase, step: int) -> None:
        model, optimizer = whole(kept_state(self.r.model)), whole(self.optimizer.state_dict())
        reference = whole(kept_state(self.reference)) if self.reference is not None else None
        if not self.ranks.is_main:
            return
        checkpoint = Checkpoint(
            phase=phase,
            step=step,
            model=model,
            optimizer=optimizer,
            rng=torch.get_rng_state(),
            reference=reference,
            credit_state=self.credit_state.to_dict(),
            entropy_history=self.entropy_history.to_dict(),
            stream=None if phase == "sft" or not step else asdict(self.stream.state),
            success_before=self.success_before,
            num_trajectories=self.num_trajectories,
            wall_s=self._wall_s(),
            columns=self.columns.state_dict(),
            activity=self.activity.state_dict(),
        )
        save_checkpoint(self.run_dir, checkpoint)

    async def _restore(self) -> tuple[Phase, int]:
        found = self.checkpoint
        phase: Phase = found.phase if found else "sft"
        self.optimizer = self.r.make_optimizer(self.config.sft.optimizer if phase == "sft" else self.config.optimizer)
        self.log.forget_after(phase, found.step if found else 0)
        if found is None:
            return "sft", 0
        load_weights(self.r.model, found.model)
        load_optimizer(self.optimizer, found.optimizer)
        torch.set_rng_state(found.rng)
        if found.reference is not None:
            self.reference = frozen_copy(self.r.model)
            load_weights(self.reference, found.reference)
        self.success_before, self.num_trajectories = found.success_before, found.num_trajectories
        self.earlier_wall_s = found.wall_s
        self.credit_state = CreditState.from_dict(found.credit_state)
        self.entropy_history = EntropyHistory.from_dict(found.entropy_history)
        self.stream_state = None if found.stream is None else StreamState(**found.stream)
        self.columns.load_state_dict(found.columns)
        self.activity.load_state_dict(found.activity)
        await self.r.update_engine(found.step if phase == "rl" else 0)
        self.log.say(f"resumed after {phase} step {found.step}")
        return phase, found.step
