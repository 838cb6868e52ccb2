"""Evaluate a policy on tasks of one environment from Python, as ``agentgym eval`` does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from agentgym.api.effort import Effort
from agentgym.api.policies import SamplingPlan, check_policy, note_on_stderr, open_agents, policy_facts
from agentgym.api.run_dirs import as_path, new_run_dir, removed_if_nothing_was_played
from agentgym.api.run_settings import as_the_run, run_settings
from agentgym.canonical import digest
from agentgym.env.arguments import plain_arguments, typed_arguments
from agentgym.env.env import Env
from agentgym.env.tasks import require_tasks
from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import UsageError, raising_first_cause
from agentgym.evals import compare as evals_compare
from agentgym.evals import runner
from agentgym.evals.budget import Budget, both
from agentgym.evals.compare import Comparison
from agentgym.evals.episodes import read_groups, read_rows, write_json
from agentgym.evals.ledger import Ledger, kept_in
from agentgym.evals.policies import policy_of
from agentgym.evals.prices import Price, read_prices
from agentgym.evals.scoring import Scoring
from agentgym.progress import VisibleConsole, episode_progress
from agentgym.registry import id_of, make, with_id
from agentgym.rollout import journal
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.context import FULL
from agentgym.rollout.episode_notes import EpisodeNotes
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.kept_files import keep_files
from agentgym.rollout.pool import EnvPool
from agentgym.settings import checked
from agentgym.trust import sign
from agentgym.types import Task, Trajectory

MakeEnv = Callable[..., Env]
"""An environment class, or a function that makes an environment."""
ChoosesAction = Callable[..., object]
"""A function that takes any of ``env``, ``observation`` and ``rng`` and returns an action."""
Bars = Callable[[Console, int], AbstractContextManager[Callable[[Trajectory], None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """All settings that determine the result of an evaluation. They are saved with it, so that it can be resumed."""

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
    """Episodes per task."""
    scoring: dict[str, object] = field(default_factory=dict)
    """The definition of success (:class:`agentgym.evals.scoring.Scoring`); empty for the environment's own."""
    opponent: str = ""
    """Policy of the other players in a game for several players."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    chat: dict[str, object] = field(default_factory=dict)
    context: dict[str, object] = field(default_factory=dict)
    harness: dict[str, Any] = field(default_factory=dict)
    verify: dict[str, object] = field(default_factory=dict)

    @property
    def sampling(self) -> SamplingPlan:
        """Return the sampling and rendering settings of a model."""
        return SamplingPlan(**{part.name: getattr(self, part.name) for part in fields(SamplingPlan)})


@dataclass(frozen=True, slots=True)
class PythonObjects:
    """An environment and a policy given as Python objects instead of names."""

    make_env: MakeEnv | None = None
    make_agent: MakeAgent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of :func:`evaluate` and the folder of its episodes."""

    summary: runner.EvalSummary
    run_dir: Path

    def __str__(self) -> str:
        low, high = self.interval
        num_episodes = self.summary.num_episodes
        return f"success {self.success:.3f} ({low:.3f} to {high:.3f}), {num_episodes} episodes: {self.run_dir}"

    @property
    def success(self) -> float:
        """Share of valid episodes that succeeded."""
        return self.summary.success

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of :attr:`success`."""
        return self.summary.success_low, self.summary.success_high

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per episode: task, status, success, return, turns, tokens, seconds."""
        return read_rows(self.run_dir)

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Trajectories of all episodes."""
        return tuple(one for group in read_groups(self.run_dir) for one in group.trajectories)


def evaluate(  # noqa: PLR0913  (one per option of `agentgym eval`)
    env: str | MakeEnv,
    policy: str | ChoosesAction,
    *,
    kwargs: Mapping[str, object] | None = None,
    episodes: int | None = None,
    repeats: int | None = None,
    split: str | None = None,
    seed: int | None = None,
    scorer: str | Mapping[str, object] = "",
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    max_context_tokens: int | None = None,
    opponent: str = "",
    prices: str = "",
    num_envs: int = 32,
    run_dir: str | Path | None = None,
) -> Evaluation:
    """Evaluate a policy, as ``agentgym eval`` does, and return the result with its episodes.

    It also works if an event loop is already running, as in a notebook. On a terminal it shows a progress bar. If the
    policy is the folder of a training run, arguments left at None take the values of the run's own evaluation.

    Args:
        env: an id, ``file.py:Id``, an environment class, or a function that makes an environment.
        policy: a name as ``--policy`` takes it (``oracle``, ``random``, a model, ``openai:URL``), or a function of any
            of ``env``, ``observation`` and ``rng`` that returns an action.
        kwargs: arguments of the environment.
        episodes: number of tasks, taken from the start of the split; by default 50.
        repeats: episodes per task, for pass@k; by default 1.
        split: ``train``, ``valid`` or ``test`` (the default).
        seed: seed of the policy's sampling; by default 0.
        scorer: name of a scorer, or the settings of several (``{"scorers": [...]}``); by default the environment
            defines success.
        temperature: 0 for greedy sampling; by default 1.
        max_new_tokens: most sampled tokens per turn; by default 64.
        max_context_tokens: most tokens in the context; 0, the default, for the model's own limit.
        opponent: policy of the other players in a game for several players.
        prices: money per million tokens, ``IN,OUT`` or a file, as ``--prices`` takes them.
        num_envs: episodes played at the same time.
        run_dir: folder of the results; by default ``runs/eval-<name>-<NNN>``.

    Raises:
        UsageError: the environment, policy, split or scorer is unknown, or ``run_dir`` is not empty.
        RunStoppedError: too many episodes failed because of the infrastructure.

    Example:
        >>> import tempfile
        >>> result = evaluate("agentgym/Household-v0", "oracle", episodes=2, run_dir=tempfile.mkdtemp())
        >>> result.success, len(result.trajectories)
        (1.0, 2)
    """
    scoring: Mapping[str, object] = {"kind": scorer} if isinstance(scorer, str) and scorer else dict(scorer or {})
    options = {
        "kwargs": dict(kwargs or {}), "episodes": episodes, "repeats": repeats, "split": split, "seed": seed,
        "scoring": scoring, "temperature": temperature, "max_new_tokens": max_new_tokens,
        "max_context_tokens": max_context_tokens, "opponent": opponent,
    }  # fmt: skip
    given = plan_of(env, policy, {name: value for name, value in options.items() if value is not None})
    objects = PythonObjects(
        None if isinstance(env, str) else env, None if isinstance(policy, str) else policy_of(name_of(policy), policy)
    )
    effort = Effort(num_envs=num_envs, prices=read_prices(prices) if prices else None)
    plan, folder = begin(given, None if run_dir is None else as_path("run_dir", run_dir), objects)
    with removed_if_nothing_was_played(folder):
        summary = raising_first_cause(lambda: run_coroutine(play(plan, folder, effort, given=objects)))
    return Evaluation(summary=summary, run_dir=folder)


def plan_of(env: str | MakeEnv, policy: str | ChoosesAction, given: dict[str, object]) -> dict[str, Any]:
    """Return the fields of a plan. If the policy is a training run, its settings fill the fields that are not given.

    Raises:
        UsageError: the environment or the policy is an object that cannot be called.
    """
    _check_callable("env", env, "an id, file.py:Id, an environment class, or a function that makes an environment")
    _check_callable("policy", policy, "a name, a model, openai:URL, or a function that returns an action")
    names = env if isinstance(env, str) else name_of(env), policy if isinstance(policy, str) else name_of(policy)
    if isinstance(env, str) and isinstance(policy, str):
        return as_the_run(*names, given, note_on_stderr)
    run = run_settings(policy) if isinstance(policy, str) else None
    return {"env": names[0], "policy": names[1], **({} if run is None else run.sampling), **given}


def _check_callable(argument: str, given: object, expected: str) -> None:
    if not isinstance(given, str) and not callable(given):
        raise UsageError(f"{argument} is an instance of {type(given).__name__}; expected {expected}")


def compare(a: Evaluation | str | Path, b: Evaluation | str | Path) -> Comparison:
    """Compare two evaluations task by task, as ``agentgym compare`` does.

    Args:
        a: result of :func:`evaluate`, or the folder of one evaluation.
        b: likewise; the reported difference is the success of ``b`` minus that of ``a``.

    Raises:
        UsageError: tasks, arguments or limits differ, a folder holds several evaluations, or an argument is neither.
        CorruptDataError: a folder holds no finished evaluation.

    Example:
        >>> import tempfile
        >>> def looks() -> str:
        ...     return "look"
        >>> idle, best = (
        ...     evaluate("agentgym/Household-v0", policy, episodes=8, run_dir=tempfile.mkdtemp())
        ...     for policy in (looks, "oracle")
        ... )
        >>> found = compare(idle, best)
        >>> found.difference, found.num_only_b, found.p_value < 0.05
        (1.0, 8, True)
    """
    return evals_compare.compare(_opened(a), _opened(b))


def _opened(given: Evaluation | str | Path) -> evals_compare.FinishedEvaluation:
    folder = given.run_dir if isinstance(given, Evaluation) else as_path("an evaluation", given)
    found = evals_compare.open_evaluations(folder)
    if len(found) > 1:
        raise UsageError(f"{folder} has {len(found)} evaluations ({', '.join(found)}); name the folder of one")
    return next(iter(found.values()))


def name_of(given: Callable[..., object]) -> str:
    """Return the name of an object in results: the id of a registered class, or else the object's ``__name__``."""
    return str(getattr(given, "__name__", type(given).__name__))


def begin(
    given: dict[str, Any], run_dir: Path | None, objects: PythonObjects = PythonObjects()
) -> tuple[EvalPlan, Path]:
    """Return the plan and the folder of a new evaluation, after checking all arguments.

    Raises:
        UsageError: the environment or policy is unknown, or the folder is in use. No folder has been made then.
    """
    env = with_id(given["env"])
    plan = checked(EvalPlan, {**given, "env": env, "kwargs": plain_arguments(env, given.get("kwargs", {}))})
    if plan.episodes < 1 or plan.repeats < 1:
        raise UsageError(f"episodes and repeats must be at least 1, got {plan.episodes} and {plan.repeats}")
    plan = replace(plan, scoring=asdict(Scoring.read(plan.scoring)) if plan.scoring else {})
    env_maker(plan, objects)().close()
    if objects.make_agent is None:
        check_policy(plan.policy, plan.sampling)
    if plan.opponent:
        check_policy(plan.opponent, plan.sampling)
    name = plan.env if objects.make_env else id_of(plan.env, plan.kwargs)
    folder = new_run_dir(f"eval-{name.rpartition('/')[2].lower()}", run_dir)
    write_json(folder / "config.json", keep_files(folder, {"eval": asdict(plan)}))
    sign(folder)
    return plan, folder


def env_maker(plan: EvalPlan, given: PythonObjects) -> Callable[[], Env]:
    """Return a function that makes an instance of the plan's environment."""
    if given.make_env is None:
        return partial(make, id_of(plan.env, plan.kwargs), **plan.kwargs)

    def checked() -> Env:
        assert given.make_env is not None
        made = given.make_env(**typed_arguments(plan.env, given.make_env, plan.kwargs))
        if not isinstance(made, Env):
            raise UsageError(f"{plan.env}() made a {type(made).__name__}, expected a subclass of agentgym.Env")
        return made

    return checked


def _tasks_of(plan: EvalPlan, make_env: Callable[[], Env], status: Console) -> tuple[list[Task], SamplingPlan]:
    """Return the tasks, each repeated as planned, and the sampling settings, including a worked example."""
    probe = make_env()
    tasks = require_tasks(probe.tasks, plan.split, plan.env)[: plan.episodes]
    sampling = _with_example(plan, probe)
    probe.close()
    if len(tasks) < plan.episodes:
        status.print(f"the split {plan.split} has {len(tasks)} tasks; evaluating on all of them")
    return [*tasks] * plan.repeats, sampling


async def play(
    plan: EvalPlan,
    folder: Path,
    effort: Effort,
    *,
    resume: bool = False,
    status: Console | None = None,
    bars: Bars = episode_progress,
    given: PythonObjects = PythonObjects(),
) -> runner.EvalSummary:
    """Run the planned evaluation and write the episodes and the summary to its folder.

    Args:
        status: the console for progress and remarks; by default standard error.
        bars: context manager that shows the progress.
    """
    status = status or VisibleConsole(file=sys.stderr, highlight=False)
    is_new_limit, effort = effort.is_limited, effort.kept_in(folder)
    prices, budget = effort.prices_in(folder, [plan.policy]), effort.budget(folder)
    ledger = Ledger(folder, prices, [plan.policy, plan.opponent], budget.count)
    if not is_new_limit:
        ledger.count_again()
    with kept_in(ledger):
        price = prices.of(plan.policy)
        return await _play(
            plan,
            folder,
            effort.slots,
            price=price,
            budget=budget,
            resume=resume,
            status=status,
            bars=bars,
            given=given,
        )


async def _play(  # noqa: PLR0913  (the rest of play, within its ledger)
    plan: EvalPlan,
    folder: Path,
    num_envs: int,
    *,
    price: Price | None,
    budget: Budget,
    resume: bool,
    status: Console,
    bars: Bars,
    given: PythonObjects,
) -> runner.EvalSummary:
    make_env = env_maker(plan, given)
    name = plan.env if given.make_env else id_of(plan.env, plan.kwargs)
    tasks, sampling = _tasks_of(plan, make_env, status)
    _keep_journal(plan, folder, name, tasks, status, given)
    num_slots = max(1, min(num_envs, len(tasks)))
    made = given.make_agent
    if made is None and resume and runner.is_complete(folder, [folder]):
        made = runner.complete_policy  # a new price, say, needs no endpoint that answers
    make_agent, close = (made, _nothing) if made else await open_agents(plan.policy, sampling, num_slots, folder=folder)
    make_opponent, close_opponent = (
        await open_agents(plan.opponent, replace(sampling, verify={}), num_slots) if plan.opponent else (None, _nothing)
    )
    pool = EnvPool(make_env, num_envs)
    notes = EpisodeNotes(lambda text: status.print(text, markup=False, soft_wrap=True))
    try:
        with bars(status, len(tasks)) as count:
            return await runner.evaluate(
                tasks,
                pool,
                make_agent,
                out_dir=folder,
                suite_or_env=name,
                policy=plan.policy,
                seed=plan.seed,
                group_config=GroupConfig(group_size=1, min_valid=1, num_envs=num_envs),
                resume=resume,
                on_episode=both(count, budget.at(price), notes.watch),
                on_attempt=budget.end_attempt,
                opponent=make_opponent,
                scoring=Scoring.read(plan.scoring),
                price=price,
            )
    finally:
        await pool.close()
        await close()
        await close_opponent()


async def _nothing() -> None:
    pass


def _with_example(plan: EvalPlan, env: Env) -> SamplingPlan:
    """Return the sampling settings, with a worked example for the prompts if the plan asks for one."""
    if not plan.context.get("example_turns"):
        return plan.sampling
    shown = FULL.changed(plan.context).with_example(env).examples
    return replace(plan.sampling, context={**plan.context, "examples": [asdict(message) for message in shown]})


def _keep_journal(
    plan: EvalPlan, folder: Path, name: str, tasks: list[Task], status: Console, given: PythonObjects
) -> None:
    """Record the versions that the evaluation uses, and report which have changed since it began."""
    facts = {} if given.make_agent else policy_facts(plan.policy)
    changes = journal.note(
        folder,
        env=name,
        tasks=digest([[task.id, task.content_hash] for task in tasks]),
        policy={"name": plan.policy, **facts},
        own_files=journal.own_files(asdict(plan)),
    )
    if changes:
        told = f"note: this evaluation was begun with other versions ({'; '.join(changes)})"
        status.print(told, markup=False, soft_wrap=True)
