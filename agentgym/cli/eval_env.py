"""``agentgym eval ENV``: one policy on tasks of one environment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.cli.grid import Grid
from agentgym.cli.output import Output
from agentgym.cli.policies import SamplingPlan

if TYPE_CHECKING:
    from agentgym.cli.effort import Effort
    from agentgym.env.env import Env
    from agentgym.evals.runner import EvalSummary
    from agentgym.registry import EnvEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """All that decides an evaluation's result; saved with it, so that it can be resumed."""

    env: str
    policy: str
    episodes: int = 50
    seed: int = 0
    split: str = "test"
    temperature: float = 1.0
    max_new_tokens: int = 64
    max_thinking_tokens: int = 0
    max_context_tokens: int = 0
    repeats: int = 1
    """Episodes of each task."""
    scoring: dict[str, Any] = field(default_factory=dict)
    """What a success is (:class:`agentgym.evals.scoring.Scoring`); empty for the environment's own word."""
    opponent: str = ""
    """Who plays against the policy in a game that waits for the moves of all its players."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    chat: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)

    @property
    def sampling(self) -> SamplingPlan:
        """Return the settings of a model."""
        return SamplingPlan(**{part.name: getattr(self, part.name) for part in fields(SamplingPlan)})


def begin(given: dict[str, Any], run_dir: Path | None) -> tuple[EvalPlan, Path]:
    """A new evaluation's plan and folder; what cannot be is refused before the folder is made.

    Raises:
        UsageError: no such environment or policy, or the folder is taken.
    """
    from agentgym.cli.env_args import open_env
    from agentgym.cli.policies import check_policy
    from agentgym.cli.run_dirs import new_run_dir
    from agentgym.evals.episodes import write_json
    from agentgym.evals.scoring import Scoring
    from agentgym.registry import find
    from agentgym.trust import sign

    plan = EvalPlan(**given)
    plan = replace(plan, scoring=asdict(Scoring.read(plan.scoring)) if plan.scoring else {})
    entry = find(plan.env)
    open_env(entry, plan.kwargs).close()
    check_policy(plan.policy, plan.sampling)
    if plan.opponent:
        check_policy(plan.opponent, plan.sampling)
    folder = new_run_dir(f"eval-{entry.id.rpartition('/')[2].lower()}", run_dir)
    write_json(folder / "config.json", {"eval": asdict(plan)})
    sign(folder)
    return plan, folder


async def evaluate_env(plan: EvalPlan, folder: Path, effort: Effort, resume: bool, out: Output) -> EvalSummary:
    """Play what the plan says."""
    from agentgym.canonical import digest
    from agentgym.cli.env_args import open_env
    from agentgym.cli.policies import open_agents, policy_facts
    from agentgym.cli.progress import episode_progress
    from agentgym.evals.budget import both
    from agentgym.evals.runner import evaluate
    from agentgym.evals.scoring import Scoring
    from agentgym.registry import find
    from agentgym.rollout import journal
    from agentgym.rollout.context import FULL
    from agentgym.rollout.group import GroupConfig
    from agentgym.rollout.pool import EnvPool

    entry: EnvEntry = find(plan.env)

    def make_env() -> Env:
        return open_env(entry, plan.kwargs)

    probe = make_env()
    tasks = probe.tasks(plan.split)[: plan.episodes]
    sampling = plan.sampling
    if plan.context.get("example_turns"):
        shown = FULL.changed(plan.context).with_example(probe).examples
        sampling = replace(sampling, context={**plan.context, "examples": [asdict(message) for message in shown]})
    probe.close()
    if len(tasks) < plan.episodes:
        out.status.print(f"the split {plan.split} has {len(tasks)} tasks; evaluating on all of them")
    tasks = [*tasks] * plan.repeats
    changes = journal.note(
        folder,
        env=entry.id,
        tasks=digest([[task.id, task.content_hash] for task in tasks]),
        policy={"name": plan.policy, **policy_facts(plan.policy)},
    )
    if changes:
        told = f"note: this evaluation was begun with other versions ({'; '.join(changes)})"
        out.status.print(told, markup=False, soft_wrap=True)
    num_slots = max(1, min(effort.num_envs, len(tasks)))
    make_agent, close = await open_agents(plan.policy, sampling, num_slots)
    make_opponent, close_opponent = None, None
    if plan.opponent:
        make_opponent, close_opponent = await open_agents(plan.opponent, sampling, num_slots)
    pool = EnvPool(make_env, effort.num_envs)
    try:
        with episode_progress(out.status, len(tasks)) as count:
            return await evaluate(
                tasks,
                pool,
                make_agent,
                out_dir=folder,
                suite_or_env=entry.id,
                policy=plan.policy,
                seed=plan.seed,
                group_config=GroupConfig(group_size=1, min_valid=1, num_envs=effort.num_envs),
                resume=resume,
                on_episode=both(count, effort.budget(folder).spend),
                opponent=make_opponent,
                scoring=Scoring.read(plan.scoring),
            )
    finally:
        await pool.close()
        await close()
        if close_opponent is not None:
            await close_opponent()


def print_summary(out: Output, summary: EvalSummary, folder: Path) -> None:
    """The result, for people."""
    from rich.markup import escape
    from rich.table import Table

    from agentgym.evals.episodes import read_rows
    from agentgym.evals.statistics import mean_interval

    returns = [row["return"] for row in read_rows(folder) if row["return"] is not None]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("[bold]environment[/]", escape(summary.suite_or_env))
    table.add_row("[bold]policy[/]", escape(summary.policy))
    interval = f"95 % interval {summary.success_low:.1%} to {summary.success_high:.1%}"
    num_evidence = summary.num_episodes - summary.num_failed
    played = f"{num_evidence} episodes" + (f" of {summary.num_tasks} tasks" if summary.repeats else "")
    table.add_row("[bold]success[/]", f"[bold green]{summary.success:.1%}[/]  {interval}, {played}")
    for title, values in repeat_lines(summary.repeats):
        table.add_row(f"[bold]{title}[/]", values)
    if summary.mean_score is not None:
        table.add_row("[bold]score[/]", f"{summary.mean_score:.3f}")
    table.add_row("[bold]return[/]", str(mean_interval(returns)).replace("[", "\\["))
    invalid, refused = f"{summary.mean_invalid_turns:.2f} invalid", f"{summary.mean_tool_errors:.2f} tool errors"
    table.add_row("[bold]turns[/]", f"{summary.mean_turns:.1f}, of them {invalid}; {refused}")
    if summary.mean_tokens:
        read = f", {summary.mean_prompt_tokens:.0f} read" if summary.mean_prompt_tokens else ""
        table.add_row("[bold]tokens[/]", f"{summary.mean_tokens:.0f} sampled{read} per episode")
    table.add_row("[bold]time[/]", f"{summary.mean_seconds:.2g} s per episode")
    table.add_row("[bold]ended as[/]", ", ".join(f"{name} {count}" for name, count in summary.statuses.items()))
    if summary.num_failed:
        table.add_row("[bold red]failed[/]", f"{summary.num_failed}; play them again: agentgym eval --resume {folder}")
    out.console.print(table)
    if summary.by_type:
        out.console.print(types_table(summary))
    out.console.print(f"look at it: agentgym view {folder}", soft_wrap=True, markup=False)


def repeat_lines(repeats: dict[str, dict[str, float]]) -> list[tuple[str, str]]:
    """Return what several trials of each task say, as lines of a table.

    Example:
        >>> repeat_lines({"pass_at": {"1": 0.5, "2": 0.75}, "majority": {"2": 0.5}})
        [('pass@k', '1: 50.0%  2: 75.0%'), ('majority of k', '2: 50.0%')]
    """
    from agentgym.evals.runner import REPEATS

    return [
        (REPEATS[name], "  ".join(f"{k}: {value:.1%}" for k, value in values.items()))
        for name, values in repeats.items()
    ]


def types_table(summary: EvalSummary) -> Grid:
    """Return the results of each type of task."""
    from rich.markup import escape

    table = Grid("task type", "success", "95 % interval", "turns", "episodes")
    for name, found in summary.by_type.items():
        interval = f"{found['success_low']:.1%} to {found['success_high']:.1%}"
        turns, episodes = f"{found['mean_turns']:.1f}", f"{found['num_episodes']:.0f}"
        table.add_row(escape(name or "none"), f"{found['success']:.1%}", interval, turns, episodes)
    return table
