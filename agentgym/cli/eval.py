"""``agentgym eval``: how well does a policy do?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgym.cli.env_args import KwargsArgument
from agentgym.cli.output import JsonFlag, Output, output

if TYPE_CHECKING:
    from agentgym.env import Env
    from agentgym.evals.runner import EvalSummary
    from agentgym.registry import EnvEntry
    from agentgym.rollout.actor import MakeActor

SCRIPTED = ("oracle", "random")


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
    max_context_tokens: int = 0
    codec: str = "auto"
    opponent: str = ""
    """Who plays against the policy in a game that waits for the moves of all its players."""
    kwargs: dict[str, Any] = field(default_factory=dict)


def eval_(  # noqa: PLR0913  (a command's options)
    env: Annotated[
        str | None, typer.Argument(metavar="ENV", help="An id, module:Id, or file.py:Id; left out with --resume.")
    ] = None,
    kwargs: KwargsArgument = None,
    *,
    policy: Annotated[str | None, typer.Option(help="oracle, random, or a model's folder.")] = None,
    episodes: Annotated[int | None, typer.Option(min=1, help="The first N tasks of the split. [default: 50]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the policy's sampling. [default: 0]")] = None,
    split: Annotated[str | None, typer.Option(help="train, valid or test. [default: test]")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy. [default: 1]")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per turn. [default: 64]")] = None,
    max_context_tokens: Annotated[
        int | None, typer.Option(min=1, help="Per episode. [default: the model's own limit]")
    ] = None,
    codec: Annotated[str | None, typer.Option(help="Tool-call format. [default: the chat template's]")] = None,
    opponent: Annotated[
        str | None, typer.Option(help="In a game with opponent=self: oracle, random, or a model's folder.")
    ] = None,
    num_envs: Annotated[int, typer.Option(min=1, help="Episodes played at the same time.")] = 32,
    resume: Annotated[Path | None, typer.Option(metavar="RUN_DIR", help="Go on with a stopped evaluation.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where it goes; by default runs/eval-<env>-<NNN>.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate a policy: each task once, with intervals and a trace of every episode."""
    import asyncio

    from agentgym.cli.exits import resumable_by

    given = {
        "env": env, "policy": policy, "episodes": episodes, "seed": seed, "split": split, "temperature": temperature,
        "max_new_tokens": max_new_tokens, "max_context_tokens": max_context_tokens, "codec": codec,
        "opponent": opponent,
    }  # fmt: skip
    with output(as_json) as out:
        plan, entry, folder = _plan({k: v for k, v in given.items() if v is not None}, kwargs or [], resume, run_dir)
        with resumable_by(f"agentgym eval --resume {folder}"):
            summary = asyncio.run(_evaluate(plan, entry, folder, num_envs, resume is not None, out))
        out.result(asdict(summary))
        _print(out, summary, folder)


def _plan(
    given: dict[str, Any], pairs: list[str], resume: Path | None, run_dir: Path | None
) -> tuple[EvalPlan, EnvEntry, Path]:
    from agentgym.cli.env_args import open_env, parse_pairs
    from agentgym.cli.run_dirs import new_run_dir
    from agentgym.errors import UsageError
    from agentgym.evals.episodes import write_json
    from agentgym.registry import find

    if resume is not None:
        plan = _load_plan(resume)
        saved = asdict(plan)
        for name, value in (given | ({"kwargs": parse_pairs(pairs)} if pairs else {})).items():
            if saved[name] != value:
                raise UsageError(
                    f"{resume} was begun with {name}={saved[name]!r}, not {value!r}; "
                    "leave it out to go on, or begin another evaluation"
                )
        return plan, find(plan.env), resume
    if "env" not in given or "policy" not in given:
        raise UsageError("name an environment and a policy: agentgym eval ENV --policy oracle|random|MODEL_DIR")
    plan = EvalPlan(**given, kwargs=parse_pairs(pairs))
    entry = find(plan.env)
    open_env(entry, plan.kwargs).close()  # refused before a folder is made
    _check_policy(plan.policy)
    if plan.opponent:
        _check_policy(plan.opponent)
    folder = new_run_dir(f"eval-{entry.id.rpartition('/')[2].lower()}", run_dir)
    write_json(folder / "config.json", {"eval": asdict(plan)})
    return plan, entry, folder


def _load_plan(folder: Path) -> EvalPlan:
    from agentgym.errors import CorruptDataError

    try:
        return EvalPlan(**json.loads((folder / "config.json").read_text(encoding="utf-8"))["eval"])
    except FileNotFoundError:
        raise CorruptDataError(f"{folder} is not an evaluation: it has no config.json") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{folder / 'config.json'} is not an evaluation's configuration ({error!r})") from error


def _check_policy(policy: str) -> None:
    from agentgym.cli.run_dirs import need_train_extra
    from agentgym.errors import unknown_name

    if policy in SCRIPTED:
        return
    if not Path(policy).is_dir():
        raise unknown_name("policy", policy, SCRIPTED, "or a model's folder, and there is none of that name")
    need_train_extra("evaluating a model")


async def _evaluate(
    plan: EvalPlan, entry: EnvEntry, folder: Path, num_envs: int, resume: bool, out: Output
) -> EvalSummary:
    from agentgym.cli.env_args import open_env
    from agentgym.cli.progress import EpisodeProgress
    from agentgym.evals.runner import evaluate
    from agentgym.rollout.group import GroupConfig
    from agentgym.rollout.pool import EnvPool

    def make_env() -> Env:
        return open_env(entry, plan.kwargs)

    probe = make_env()
    tasks = probe.tasks(plan.split)[: plan.episodes]
    probe.close()
    if len(tasks) < plan.episodes:
        out.status.print(f"the split {plan.split} has {len(tasks)} tasks; evaluating on all of them")
    num_slots = max(1, min(num_envs, len(tasks)))
    make_actor, close = _open_policy(plan, plan.policy, num_slots)
    make_opponent, close_opponent = _open_policy(plan, plan.opponent, num_slots) if plan.opponent else (None, None)
    pool = EnvPool(make_env, num_envs)
    try:
        with EpisodeProgress(out.status, len(tasks)) as progress:
            return await evaluate(
                tasks,
                pool,
                make_actor,
                out_dir=folder,
                suite_or_env=entry.id,
                policy=plan.policy,
                seed=plan.seed,
                group_config=GroupConfig(group_size=1, min_valid=1, num_envs=num_envs),
                resume=resume,
                on_episode=progress.add,
                opponent=make_opponent,
            )
    finally:
        await pool.close()
        await close()
        if close_opponent is not None:
            await close_opponent()


def _open_policy(plan: EvalPlan, name: str, num_slots: int) -> tuple[MakeActor, Callable[[], Any]]:
    from agentgym.check.policies import random_action
    from agentgym.evals.policies import oracle, scripted

    async def nothing() -> None:
        pass

    if name == "oracle":
        return oracle, nothing
    if name == "random":
        return scripted(random_action), nothing
    from agentgym.engine import SamplingParams
    from agentgym.rollout.actor import ModelActor
    from agentgym.trainers.policy import open_policy

    folder = Path(name)
    if (folder / "model").is_dir():  # a training run: its policy is inside
        folder = folder / "model"
    policy = open_policy(folder, num_slots=num_slots, max_context_tokens=plan.max_context_tokens, codec=plan.codec)
    sampling = SamplingParams(temperature=plan.temperature, max_new_tokens=plan.max_new_tokens)
    return lambda env, seed: ModelActor(policy.engine, policy.renderer, sampling, seed), policy.engine.close


def _print(out: Output, summary: EvalSummary, folder: Path) -> None:
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
    table.add_row("[bold]success[/]", f"[bold green]{summary.success:.1%}[/]  {interval}, {num_evidence} episodes")
    table.add_row("[bold]return[/]", str(mean_interval(returns)).replace("[", "\\["))
    table.add_row("[bold]turns[/]", f"{summary.mean_turns:.1f}")
    if summary.mean_tokens:
        table.add_row("[bold]tokens[/]", f"{summary.mean_tokens:.0f} sampled per episode")
    table.add_row("[bold]ended as[/]", ", ".join(f"{name} {count}" for name, count in summary.statuses.items()))
    if summary.num_failed:
        table.add_row("[bold red]lost[/]", f"{summary.num_failed}; play them again: agentgym eval --resume {folder}")
    out.console.print(table)
    out.console.print(f"look at it: agentgym view {folder}", soft_wrap=True, markup=False)
