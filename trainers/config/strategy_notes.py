"""Strategies that cannot act in a run: on tasks that do not come round, or beyond a limit that already holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentgym.trainers.config.train import TrainConfig


def strategy_notes(config: TrainConfig, num_tasks: int | None, max_turns: int | None) -> tuple[str, ...]:
    """Return a line for each strategy that changes nothing in this run, with the setting that helps.

    Args:
        config: the settings of one environment of a run.
        num_tasks: number of its training tasks; None if it is not known.
        max_turns: the environment's limit of turns; None for no limit.

    Example:
        >>> from agentgym.trainers.config.overrides import apply_overrides
        >>> from agentgym.trainers.recipes import load_recipe
        >>> config = apply_overrides(load_recipe("tiny"), ['strategy.guidance={"kind": "fading"}'])
        >>> [note[:57] for note in strategy_notes(config, 1_000_000, 30)]
        ['strategy.guidance=fading acts on earlier visits of a task']
    """
    alone = config.strategy.demonstrates and config.group.group_size < 2
    lonely = "strategy.guidance=demonstration needs a member beside the oracle's: raise group.group_size above 1"
    return (
        *_without_visits(config, num_tasks),
        *_budget(config),
        *_beyond_turns(config, max_turns),
        *_replay(config),
        *((lonely,) if alone else ()),
    )


def _without_visits(config: TrainConfig, num_tasks: int | None) -> Iterator[str]:
    strategy, num_groups = config.strategy, config.num_steps * config.groups_per_step
    if num_tasks is None or num_groups > num_tasks or strategy.probe or strategy.tasks.kind != "order":
        return
    for family, acts in (
        ("budget", strategy.rule("budget").reads("rates") and strategy.budget.kind != "even"),
        ("horizon", strategy.rule("horizon").reads("visits")),
        ("guidance", strategy.guides and strategy.rule("guidance").reads("rate")),
        ("replay", strategy.replays and not strategy.replays_groups),
    ):
        if acts:
            yield (
                f"strategy.{family}={getattr(strategy, family).kind} acts on earlier visits of a task, and the "
                f"{num_groups:,} groups of this run visit each of {num_tasks:,} tasks once at most: it changes "
                f"nothing; set env.num_train_tasks to a part of {num_groups:,}, as {max(1, num_groups // 4):,}"
            )


def _budget(config: TrainConfig) -> Iterator[str]:
    budget, size = config.strategy.budget, config.group.group_size
    name = f"strategy.budget={budget.kind}"
    high, low = getattr(budget, "high", None), getattr(budget, "low", 0)
    if high is not None and high <= size:
        yield f"{name} gives a group at most {high} episodes, and group.group_size is {size}: raise its high above that"
    elif low >= size:
        yield f"{name} gives a group at least {low} episodes, and group.group_size is {size}: lower its low"
    elif budget.kind != "even" and config.strategy.rule("budget").reads("rates") and config.groups_per_step == 1:
        yield f"{name} moves episodes between the groups of a step, and groups_per_step is 1: raise it"


def _replay(config: TrainConfig) -> Iterator[str]:
    share, num_fresh = getattr(config.strategy.replay, "share", 0.0), config.groups_per_step
    is_fixed = all(one["key"] != "strategy.replay.share" for one in config.schedules)
    if config.strategy.replays_groups and is_fixed and 0 < share < 1 and not round(num_fresh * share / (1 - share)):
        yield (
            f"strategy.replay={config.strategy.replay.kind} replays a share of {share:g}, under half a group beside "
            f"the {num_fresh} of a step: it changes nothing; raise its share above {0.5 / (num_fresh + 0.5):.3f}"
        )


def _beyond_turns(config: TrainConfig, max_turns: int | None) -> Iterator[str]:
    strategy = config.strategy
    if max_turns is None:
        return
    if strategy.prunes and (after := getattr(strategy.pruning, "after", 0)) >= max_turns:
        yield (
            f"strategy.pruning={strategy.pruning.kind} pauses after {after} turns, and an episode has {max_turns} at "
            "most: lower its after"
        )
    horizon = strategy.horizon
    least = min(getattr(horizon, "rounds", ()) or (getattr(horizon, "start", 0),))
    if least >= max_turns:
        yield (
            f"strategy.horizon={horizon.kind} begins with {least} turns, and an episode has {max_turns} at most: begin "
            "with fewer, or raise env.kwargs.max_turns"
        )
