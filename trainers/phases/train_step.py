"""One RL step: from the step's groups to credit, records, optimizer steps and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from agentgym.credit.table import Floats
from agentgym.plugins import imported
from agentgym.rollout.record import line_of, record_path, write_lines
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.token_scores import TurnScores, scores_path, write_scores
from agentgym.trainers.config.roles import POLICY
from agentgym.trainers.config.schedules import schedule_metrics, scheduled
from agentgym.trainers.data.outline import GroupMetadata
from agentgym.trainers.data.samples import FilteredGroup, Scored, of_role
from agentgym.trainers.phases.added_loss import AddedLoss, SftMix, add_all, auxiliary_of
from agentgym.trainers.phases.credit import EnvCredit, credit_envs, in_order, make_columns, split_by_env
from agentgym.trainers.phases.optimizer_step import set_rate
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.reporting.rollout_metrics import describe_mixture, describe_rollouts, strategy_effects
from agentgym.trainers.run.run import Run
from agentgym.trainers.train_state import Learner, TrainState
from agentgym.trainers.types import Metrics
from agentgym.types import TrajectoryGroup


def train_step(
    run: Run,
    state: TrainState,
    groups: Sequence[TrajectoryGroup],
    mix: SftMix | None,
    clock: Clock,
    log: Log,
) -> Metrics:
    """Train on the groups of the step after ``state.step``, and return the step's metrics.

    Args:
        mix: adds the loss of demonstrations, if ``sft.mix`` is set.
    """
    step = state.step
    config = scheduled(run.config, step)
    parts = make_columns(run.envs, groups, state.columns, step)
    clock.lap("columns")

    credited = credit_envs(parts, state.credit, step)
    for part in credited:
        for line in state.activity.say_once(part.credit.warnings):
            log.say(f"{part.of.env.name}: {line}" if part.of.env.name else line)
    verdicts = in_order(credited)
    clock.lap("credit")

    _keep_record(run, step, credited)
    clock.lap("record")

    learnt: Metrics = {}
    for part in credited:
        numbers = state.columns[part.of.env.key].learn(part.of.groups, part.credit)
        learnt |= {f"{part.of.env.prefix}{name}": value for name, value in numbers.items()}
    clock.lap("critic")

    scored, of_models = _scored(run, state, groups)
    clock.lap("columns")

    trained: Metrics = {}
    scores: list[TurnScores] = []
    for name, learner in state.learners.items():
        if run.roles.trains_at(name, step):
            metrics, of_turns = _update(run, step, name, learner, groups, verdicts, mix, scored)
            trained |= metrics if name == POLICY else {f"role/{name}/{key}": value for key, value in metrics.items()}
            scores += of_turns
    clock.lap("train")
    _keep_scores(run, step, verdicts, scores)

    described = describe_rollouts(verdicts, version=step) | describe_mixture(
        [env.name for env in config.envs], verdicts
    )
    described |= strategy_effects((env.config.strategy for env in run.envs), described)
    for part in credited:
        described |= part.metrics
    return described | learnt | of_models | trained | run.roles.metrics | schedule_metrics(run.config, step)


def _keep_record(run: Run, step: int, credited: Sequence[EnvCredit]) -> None:
    """Have the first rank write the record of the step's groups. Each rank makes the lines of those that it has."""
    ranks, path = run.ranks, record_path(run.run_dir, step)
    pairs = sorted((pair for part in credited for pair in part.recorded), key=lambda pair: pair[0].group.ordinal)
    lines = (
        [] if isinstance(verdict.group, GroupMetadata) else [line_of(verdict.to_record(columns))]
        for verdict, columns in pairs
    )
    if not run.rollouts_are_sharded:
        if ranks.is_main:
            write_lines(path, chain.from_iterable(lines))
        return
    rounds = ranks.to_first(lines, len(pairs))
    if ranks.is_main:
        write_lines(path, chain.from_iterable(chain.from_iterable(parts) for parts in rounds))
    else:
        _exhaust(rounds)


def _keep_scores(run: Run, step: int, verdicts: Sequence[FilteredGroup], scores: Sequence[TurnScores]) -> None:
    """Have the first rank write the scores of tokens, group by group, of the ranks that trained them."""
    kept = [verdict.group.ordinal for verdict in verdicts if verdict.dropped is None]
    of_group: dict[int, list[TurnScores]] = {ordinal: [] for ordinal in kept}
    for one in scores:
        of_group[one.ordinal].append(one)
    rounds = run.ranks.to_first(of_group.values(), len(kept))
    if not run.ranks.is_main:
        _exhaust(rounds)
        return
    of_ranks = (chain.from_iterable(parts) for parts in rounds)
    write_scores(
        scores_path(run.run_dir, step), (one for own in of_ranks for one in sorted(own, key=lambda one: one.key))
    )


def _exhaust(rounds: Iterable[object]) -> None:
    """Take part in an exchange whose result another rank uses."""
    for _ in rounds:
        pass


def _added_losses(
    run: Run, step: int, name: str, learner: Learner, groups: Sequence[TrajectoryGroup], mix: SftMix | None
) -> list[AddedLoss]:
    """Return a role's additional losses: of the policy that of demonstrations (``sft.mix``), and auxiliary ones."""
    loss = scheduled(run.roles.config_of(name), step).loss
    if run.roles.trained:
        groups = [of_role(group, "" if name == POLICY else name) for group in groups]
    sharded, renderer = run.rollouts_are_sharded, run.roles.renderer_of(name)
    auxiliaries = [
        auxiliary_of(part, options, groups, loss, learner.model, renderer, rollouts_are_sharded=sharded)
        for part, options in loss.parts()
        if part.family == "auxiliary loss"
    ]
    return [*([mix.at_step(step)] if mix and name == POLICY else []), *auxiliaries]


def _scored(run: Run, state: TrainState, groups: Sequence[TrajectoryGroup]) -> tuple[Scored, Metrics]:
    """Return columns that models compute, and metrics: the policy's scores with a demonstration in its prompt."""
    config = scheduled(run.config, state.step)
    found: dict[tuple[int, int], Floats] = {}
    numbers: Metrics = {}
    for part, options in config.loss.parts():
        for env, own in split_by_env(run.envs, groups) if part.scores else ():
            scored, metrics = imported(part.scores)(
                state.model,
                own,
                env.prompt_style(run.renderer),
                options,
                temperature=config.sampling.temperature,
                tokens_per_microbatch=config.columns.tokens_per_microbatch,
            )
            found |= scored
            numbers |= {f"{env.prefix}{name}": value for name, value in metrics.items()}
    return {"logprob_teacher": found}, numbers


def _update(
    run: Run,
    step: int,
    name: str,
    learner: Learner,
    groups: Sequence[TrajectoryGroup],
    verdicts: Sequence[FilteredGroup],
    mix: SftMix | None,
    scored: Scored,
) -> tuple[Metrics, Sequence[TurnScores]]:
    """Update one trained model on its own turns; return metrics, and scores of the tokens that it trained on."""
    config = scheduled(run.roles.config_of(name), step)
    rate = set_rate(learner.optimizer, config.optimizer, step, config.num_steps)
    added = _added_losses(run, step, name, learner, groups, mix)
    update = update_policy(
        learner.model,
        learner.optimizer,
        verdicts,
        config.loss,
        temperature=config.sampling.temperature,
        max_grad_norm=config.optimizer.max_grad_norm,
        reference=run.roles.teacher_of(name) or learner.reference,
        history=learner.entropy_history,
        seed=derive_seed(config.seed, "updates", step),
        add_gradient=add_all(added),
        memory=learner.loss_memory,
        scored=scored if name == POLICY else None,
        role="" if name == POLICY else name,
        rollouts_are_sharded=run.rollouts_are_sharded,
    )
    learner.entropy_history = update.history
    learner.loss_memory = update.memory or learner.loss_memory
    of_losses = {key: value for loss in added for key, value in loss.metrics().items()}
    return update.metrics | {"lr": rate} | of_losses, update.scores
