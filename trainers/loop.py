"""The training loop, from demonstrations to an evaluated policy.

::

    train             the engine is connected, and a checkpoint restored if there is one
      demonstrations  played or read                     waits for all episodes
      warm_start      trains on them
      begin_rl        reference, critics; evaluates      waits for the engine's weights
      learn           for every step:
        rollouts.take   the groups of the step           sync: waits for all; async: for those that are due
        train_step      credit, record, gradient         sync: alone; async: beside the rollouts
        policy.update   new weights to the engine        waits until it has them
        save, evaluate  every so many steps
      evaluate_end    evaluates; the model is written

Everything random is a function of the configuration's seed and a counter, so a run that is killed at any moment and
resumed from its last checkpoint ends with the same weights as one that was not (one device, same machine).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from agentgym.canonical import shell_word
from agentgym.credit.state import CreditState
from agentgym.errors import RunStoppedError, first_cause
from agentgym.evals.compare import compare_moments
from agentgym.rollout import journal
from agentgym.rollout.group import check_rollouts, failures_of
from agentgym.trainers.checkpoint import START, CheckpointWriter, load_latest_checkpoint, restore_start, restore_state
from agentgym.trainers.config.idle import idle_ranks
from agentgym.trainers.config.rank_limits import how_shared
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.critics.columns import ColumnMaker
from agentgym.trainers.data.row import Row
from agentgym.trainers.distributed.devices import on_background_thread
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.models.adapters import ADAPTERS, save_adapters
from agentgym.trainers.models.card import Card
from agentgym.trainers.models.model import save_model
from agentgym.trainers.phases.added_loss import SftMix
from agentgym.trainers.phases.best import note_evaluation
from agentgym.trainers.phases.demonstrations import LoadedDemos, collect_rows, read_given
from agentgym.trainers.phases.evaluation import base_success, evaluate_policy
from agentgym.trainers.phases.optimizer_step import make_optimizer
from agentgym.trainers.phases.probe import probe_tasks
from agentgym.trainers.phases.rollouts import Rollouts
from agentgym.trainers.phases.sft import warm_start
from agentgym.trainers.phases.train_step import train_step
from agentgym.trainers.reporting.activity import Activity
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.reporting.metrics import Log, MetricsLog, SilentLog
from agentgym.trainers.reporting.outcome import keep_verdict, outcome
from agentgym.trainers.run.folder import (
    ROLES,
    TrainResult,
    extension_notes,
    origin_of,
    write_result,
)
from agentgym.trainers.run.run import Run
from agentgym.trainers.train_state import Learner, TrainState
from agentgym.trainers.types import CausalLM, Metrics, Tokenizer


class TrainingLoop:
    """One run, from its start or its latest checkpoint to its end. Use :func:`train`, which creates it.

    Args:
        run_dir: the run's folder; it must exist when :meth:`train` is called.
        ranks: the processes that train together. All run the same phases; only the first one logs and saves.
        num_steps_before: the number of steps that a resumed run had, if it is given more.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        resume: bool,
        ranks: Ranks = Ranks(),  # noqa: B008  (frozen)
        num_steps_before: int | None = None,
    ) -> None:
        self.config = config
        self._num_steps_before = num_steps_before or config.num_steps
        self.checkpoint = load_latest_checkpoint(run_dir) if resume else None
        phase = self.checkpoint.phase if self.checkpoint else "sft"
        self.learns_from_demos = bool(config.sft.mix.weight) or (phase == "sft" and config.sft.has_phase)
        self.given = read_given(config.sft) if self.learns_from_demos and ranks.is_main else LoadedDemos()
        self.mix: SftMix | None = None
        self.run = Run(config, run_dir, ranks)
        self.config = config = self.run.config  # with the worked example of prompts, where one is shown
        self.state = TrainState(
            phase=phase,
            model=self.run.model,
            has_base=not config.model.trains_adapters_of_files,
            has_adapters=config.needs_no_second_model,
            optimizer=make_optimizer(self.run.model, config.sft.optimizer if phase == "sft" else config.optimizer),
            columns={
                env.key: ColumnMaker(env.config, self.run.model, self.run.renderer, self.run.roles.models)
                for env in self.run.envs
            },
            credit={env.key: CreditState() for env in self.run.envs},
            roles={
                name: Learner(
                    model=role.policy.model,
                    optimizer=make_optimizer(role.policy.model, role.config.optimizer),
                    has_base=not role.config.model.trains_adapters_of_files,
                    has_adapters=role.config.needs_no_second_model,
                )
                for name, role in self.run.roles.trained.items()
            },
            activity=Activity(
                config.loss,
                has_demos=config.sft.has_phase,
                has_example=any(own.context.example_turns for own in config.by_env.values()),
                is_compact=self.run.renderer.format.name == "compact",
            ),
        )
        self.saved_step = -1
        """RL step of the latest checkpoint; -1 if there is none."""
        self.log: Log = MetricsLog(run_dir, config.wandb_project) if ranks.is_main else SilentLog()
        self.checkpoints = CheckpointWriter(
            run_dir, ranks, in_background=writes_in_background(config, self.run.model.device), say=self.log.say
        )

    async def train(self) -> TrainResult:
        """Run all remaining phases and return the result."""
        config, run, state = self.config, self.run, self.state
        with self.log, self.checkpoints:
            run.announce(self.log.say)
            run.keep_journal(self.log.say)
            for line in self.notes():
                self.log.say(line)
            await run.ranks.from_all(lambda: run.connect_engine(self.log.say))
            is_new = self.checkpoint is None
            await self.restore()
            if config.eval.base and config.sft.has_phase and is_new:
                await run.update_engines(0)  # servers have no weights of this run yet
                await evaluate_policy(run, self.log, "base", 0)
            rows = await self.demonstrations()
            if state.phase == "sft" and config.sft.has_phase:
                await run.sleep_engines()
                warm_start(run, state, rows, self.checkpoints, self.log)
            if state.phase != "rl":
                await self.begin_rl()
            if config.sft.mix.weight:
                self.mix = SftMix(config, run.model, rows)
            await probe_tasks(run, self.log)
            await self.learn()
            after = await self.evaluate_end() if config.num_steps else None
            self.conclude(after)
            self.checkpoints.finish()
            self.save_result()
        await run.close()
        return self.result(after)

    def notes(self) -> Iterator[str]:
        """Yield what a user should know before the run begins."""
        config, run = self.config, self.run
        of_envs = (note for env in run.envs for note in env.notes)
        yield from (f"note: {warning}" for warning in (*config.warnings, *run.renderer.notes, *of_envs))
        if run.renderer.vision is not None and config.model.vision == "frozen":
            yield "note: the vision tower and the projector stay as they are, unless model.vision=trained"
        shared = how_shared(config, run.ranks.count) if run.ranks.count > 1 else idle_ranks(config)
        yield from (line for line in (run.microbatch_note, shared) if line)

    async def evaluate_end(self) -> float:
        """Evaluate the policy after RL."""
        success = await evaluate_policy(self.run, self.log, "after", self.state.step)
        await note_evaluation(self.run, self.log, self.state.step)
        return success

    def result(self, after: float | None) -> TrainResult:
        """Return the result of the finished run, and write it into the run's folder."""
        run, state = self.run, self.state
        made = TrainResult(
            run_dir=str(run.run_dir),
            steps=self.config.num_steps,
            steps_made=state.step,
            steps_trained=state.activity.trained.num_trained,
            num_trajectories=state.num_trajectories,
            success_base=base_success(run),
            success_before=state.success_before,
            success_after=after,
            wall_s=state.wall_s,
        )
        if run.ranks.is_main:
            write_result(run.run_dir, made)
        return made

    def save_result(self) -> None:
        """Write the trained models on the first rank, and their adapters if there are any. All ranks must call this."""
        run = self.run
        save_trained(
            run.config, run.run_dir, run.policy.whole_model(), run.tokenizer, run.card() if run.ranks.is_main else None
        )
        for name, role in run.roles.trained.items():
            save_trained(role.config, run.run_dir / ROLES / name, role.policy.whole_model(), role.tokenizer)

    def conclude(self, after: float | None) -> None:
        """Say what RL has changed, or why it could not."""
        trained, run = self.state.activity.trained, self.run
        why = trained.closing(self.state.success_before, after)
        found = compare_moments(run.run_dir) if run.ranks.is_main and trained.num_trained else []
        num_tasks = {env.config.env.id: len(env.eval_tasks) for env in run.envs}
        lines = [*([why] if why else []), *outcome(found, run.run_dir, num_tasks)]
        for line in lines:
            self.log.say(line)
        if run.ranks.is_main:
            keep_verdict(run.run_dir, lines, found)

    async def restore(self) -> None:
        """Restore the state from the latest checkpoint, if there is one."""
        self.log.forget_after(self.state.phase, self.checkpoint.step if self.checkpoint else 0)
        if self.checkpoint is None:
            return
        is_start = self.checkpoint.phase == START
        if is_start:
            restore_start(self.state, self.checkpoint, self.run.ranks)
        else:
            restore_state(self.state, self.checkpoint, self.run.ranks)
        self.checkpoint = None  # frees its memory
        self.saved_step = self.state.step if self.state.phase == "rl" else -1
        await self.run.update_engines(self.state.step if self.state.phase == "rl" else 0)
        after = "the warm start" if is_start else f"{self.state.phase} step {self.state.step}"
        self.log.say(f"resumed after {after}" + origin_of(self.run.run_dir))
        if self.state.phase == "rl":
            for note in extension_notes(self.config, self._num_steps_before, self.state.step):
                self.log.say(f"note: {note}")

    async def demonstrations(self) -> list[Row]:
        """Return the training rows of all demonstrations, or none if the rest of the run does not use them."""
        if not self.learns_from_demos:
            return []
        return await self.run.ranks.from_main(lambda: collect_rows(self.run, self.given, self.log))

    async def begin_rl(self) -> None:
        """Prepare RL from the current policy (KL reference, critic, engine), and evaluate that policy."""
        run, state = self.run, self.state
        state.phase, state.step = "rl", 0
        run.roles.begin()
        self.begin_learners()
        for columns in state.columns.values():
            columns.begin()
        await run.update_engines(0)
        state.success_before = await evaluate_policy(run, self.log, "before", 0)
        await note_evaluation(run, self.log, 0)
        self.save()

    async def learn(self) -> None:
        """Run the remaining RL steps, with evaluations and checkpoints in between."""
        config, run, state = self.config, self.run, self.state
        rollouts = Rollouts(run, state.stream, state.plan, self.log.beat)
        self.log.begin("rl", config.num_steps, state.step)
        try:
            while state.step < config.num_steps:
                if state.step and config.eval.every and state.step % config.eval.every == 0:
                    with self.save_on_failure():
                        await evaluate_policy(run, self.log, f"step-{state.step:06d}", state.step)
                        is_over = await note_evaluation(run, self.log, state.step)
                    if is_over:
                        if state.step > self.saved_step:
                            self.save()
                        break
                clock = Clock()
                metrics = await self.step(rollouts, clock)
                state.step, state.stream, state.plan = state.step + 1, rollouts.state, rollouts.plan
                with self.save_on_failure(), self.logged(metrics, rollouts, clock):
                    await run.update_engines(state.step)
                self.checkpoints.check()
                if state.step % config.checkpoint_every == 0 or state.step == config.num_steps:
                    self.save()
        finally:
            await rollouts.close()

    def restart(self) -> None:
        """Make the policy so far the reference, with a new optimizer, at the step that the loss names."""
        if self.config.loss.restart_at and self.state.step == self.config.loss.restart_at:
            self.begin_learners()
            self.log.say(f"restart_at: the policy after step {self.state.step} is the reference from here on")

    def begin_learners(self) -> None:
        """Give each trained model a new optimizer, and make it as it is its own reference, if its loss has one."""
        for name, learner in self.state.learners.items():
            config = self.run.roles.config_of(name)
            learner.optimizer = make_optimizer(learner.model, config.optimizer)
            learner.reference = None
            if config.loss.needs_reference:
                learner.refer_to_itself()

    def save(self) -> None:
        """Write a checkpoint of the last complete RL step. All ranks must call this."""
        self.checkpoints.save(self.state)
        self.saved_step = self.state.step

    @contextmanager
    def save_on_failure(self, *, is_on_all_ranks: bool = False) -> Iterator[None]:
        """Save the last complete step if the body of this context manager fails or is interrupted.

        A resumed run then loses no step. A step whose row of metrics could not be written is not saved: it is repeated,
        so that its row is not lost either. The body must not change any state that a checkpoint contains.

        Args:
            is_on_all_ranks: True if a failure is raised on all ranks, so that they can save together.
        """
        try:
            yield
        except (Exception, asyncio.CancelledError):
            is_new = self.saved_step < self.state.step == self.log.logged_step
            if is_new and (is_on_all_ranks or self.run.ranks.count == 1):
                try:
                    self.save()
                    self.checkpoints.finish()
                except (OSError, RunStoppedError) as unsaved:  # the error that ends the run is the one to raise
                    self.log.say(f"note: step {self.state.step} could not be saved: {unsaved}")
                else:
                    self.log.say(
                        f"step {self.state.step} is saved: agentgym train --resume {shell_word(self.run.run_dir)}"
                    )
            raise

    def note_stop(self, error: Exception) -> None:
        """Write the error that ends the run into the run's journal."""
        try:
            journal.note_stop(self.run.run_dir, first_cause(error), phase=self.state.phase, step=self.state.step)
        except OSError as unwritten:  # a full disk, say
            error.add_note(f"this error could not be written into the run's journal: {unwritten}")

    @contextmanager
    def logged(self, metrics: Metrics, rollouts: Rollouts, clock: Clock) -> Iterator[None]:
        """Log the last step after the body of this context manager, which hands the new weights to the engine."""
        state = self.state
        try:
            yield
        finally:
            clock.lap("sync")
            metrics |= rollouts.metrics(metrics["sampled_tokens"], clock) | clock.seconds | self.run.engine_metrics()
            for line in state.activity.watch(state.step, metrics):
                self.log.say(line)
            self.log.log("rl", state.step, metrics | state.activity.metrics())

    async def step(self, rollouts: Rollouts, clock: Clock) -> Metrics:
        """Wait for the groups of the next step, and train on them; return metrics."""
        config, run, state = self.config, self.run, self.state
        self.restart()
        with self.save_on_failure():
            await run.roles.begin_step(state.step, state.past_results)
            groups = await rollouts.take(state.step)
        with self.save_on_failure(is_on_all_ranks=True):
            check_rollouts(groups, config.group, "group.max_failure_rate")
        self.log.watch(trajectory for group in groups for trajectory in group.trajectories)
        for thing, why in (("failed episodes", failures_of(groups)), ("failed hints", rollouts.teacher_fault)):
            for line in state.activity.say_first(thing, f"step {state.step + 1}: {why}") if why else ():
                self.log.say(line)
        clock.lap("rollout")

        train = partial(train_step, run, state, groups, self.mix, clock, self.log)
        if config.pipeline.mode == "async":  # beside the rollouts, which go on in this thread
            metrics = await asyncio.to_thread(on_background_thread(train))
        else:
            await run.sleep_engines()
            metrics = train()
        run.roles.count(groups, state.past_results)
        state.num_trajectories += sum(t.replayed_step is None for group in groups for t in group.trajectories)
        return metrics


def save_trained(
    config: TrainConfig, folder: Path, model: CausalLM | None, tokenizer: Tokenizer, card: Card | None = None
) -> None:
    """Write a trained model into ``folder/model``, and its adapters beside it; None is that of another rank."""
    if model is None:
        return
    save_model(model, tokenizer, folder / "model", config.context, config.model.chat, card)
    if config.model.trains_adapters_of_files:
        save_adapters(model, folder / ADAPTERS, config.model.path)
        tokenizer.save_pretrained(folder / ADAPTERS)


def writes_in_background(config: TrainConfig, device: torch.device) -> bool:
    """Return True if checkpoints are written in the background while training continues (``checkpoint_write``)."""
    return config.checkpoint_write == "background" or (config.checkpoint_write == "auto" and device.type == "cuda")
