"""Evaluate a policy on tasks of one environment from Python, as ``agentgym eval`` does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, closing
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from agentgym.api.policies import check_policy, note_on_stderr, open_agents, policy_facts
from agentgym.api.run_dirs import as_path, new_run_dir, removed_if_nothing_was_played
from agentgym.api.run_settings import as_the_run, sampled_as_the_run
from agentgym.canonical import digest
from agentgym.engine import ENDPOINT
from agentgym.env.arguments import plain_arguments, typed_arguments
from agentgym.env.env import Env
from agentgym.env.match_env import MatchEnv
from agentgym.env.tasks import require_tasks
from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import UsageError, raising_first_cause
from agentgym.evals import compare as evals_compare
from agentgym.evals import runner
from agentgym.evals.attempts import inner_policy
from agentgym.evals.budget import Spending, both
from agentgym.evals.compare import Comparison
from agentgym.evals.config import EvalConfig, keep_config, names_of_options
from agentgym.evals.episodes import read_groups, read_rows
from agentgym.evals.ledger import kept_in
from agentgym.evals.play import Play, play_tasks
from agentgym.evals.policies import is_scripted, policy_of
from agentgym.progress import VisibleConsole, episode_progress
from agentgym.registry import id_of, make, with_id
from agentgym.rollout import journal
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.context import FULL
from agentgym.rollout.episode_notes import EpisodeNotes
from agentgym.rollout.roles import Cast, RoleAgents, of_policy, part_name, parts_of
from agentgym.settings import checked
from agentgym.types import Task, Trajectory

MakeEnv = Callable[..., Env]
"""An environment class, or a function that makes an environment."""
ChoosesAction = Callable[..., object]
"""A function that takes any of ``env``, ``observation`` and ``rng`` and returns an action."""
Bars = Callable[[Console, int], AbstractContextManager[Callable[[Trajectory], None]]]


@dataclass(frozen=True, slots=True)
class PythonObjects:
    """An environment and a policy given as Python objects instead of names."""

    make_env: MakeEnv | None = None
    make_agent: MakeAgent | None = None

    @classmethod
    def of(cls, env: str | MakeEnv, policy: str | ChoosesAction) -> PythonObjects:
        """Return those of an environment and a policy that are not names."""
        make_agent = None if isinstance(policy, str) else policy_of(name_of(policy), policy)
        return cls(None if isinstance(env, str) else env, make_agent)


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
    max_thinking_tokens: int | None = None,
    max_context_tokens: int | None = None,
    chat: Mapping[str, object] | None = None,
    context: Mapping[str, object] | None = None,
    harness: Mapping[str, object] | None = None,
    verify: Mapping[str, object] | None = None,
    opponent: str | None = None,
    roles: Mapping[str, str] | None = None,
    num_envs: int | None = None,
    max_minutes: float | None = None,
    max_tokens: int | None = None,
    max_cost: float | None = None,
    prices: str | None = None,
    run_dir: str | Path | None = None,
) -> Evaluation:
    """Evaluate a policy, as ``agentgym eval`` does, and return the result with its episodes.

    It also works if an event loop is already running, as in a notebook. On a terminal it shows a progress bar. The
    arguments are those of :class:`~agentgym.evals.config.EvalConfig`, which ``agentgym eval --help`` describes. None
    stands for the default, or for the value of the run's own evaluation if the policy is the folder of a training run.

    Args:
        env: an id, ``file.py:Id``, an environment class, or a function that makes an environment.
        policy: a name as ``--policy`` takes it (``oracle``, ``random``, a model, ``openai:URL``), or a function of any
            of ``env``, ``observation`` and ``rng`` that returns an action.
        kwargs: arguments of the environment.
        scorer: name of a scorer, or the settings of several (``{"scorers": [...]}``); by default the environment
            defines success.
        roles: policies that play sub-agents or other players, by the name of their part.
        chat, context, harness, verify: settings as in ``chat.KEY=VALUE`` on the command line.
        run_dir: folder of the results; by default ``runs/eval-<name>-<NNN>``.

    Raises:
        UsageError: an option is wrong, the environment, policy, split or scorer is unknown, or ``run_dir`` is not
            empty.
        RunStoppedError: too many episodes failed because of the infrastructure, or a limit is reached.

    Example:
        >>> import tempfile
        >>> result = evaluate("agentgym/Household-v0", "oracle", episodes=2, run_dir=tempfile.mkdtemp())
        >>> result.success, len(result.trajectories)
        (1.0, 2)
    """
    options = {name: value for name, value in locals().items() if name in _OPTIONS and value not in (None, "")}
    scoring = {"kind": scorer} if isinstance(scorer, str) and scorer else dict(scorer or {})
    objects, given = PythonObjects.of(env, policy), plan_of(env, policy, options | {"scoring": scoring})
    limits = {name: given[name] for name in names_of_options("limit") if name in given}
    config, folder = begin(given, None if run_dir is None else as_path("run_dir", run_dir), objects)
    with removed_if_nothing_was_played(folder):
        summary = raising_first_cause(lambda: run_coroutine(play(config, folder, limits, given=objects)))
    return Evaluation(summary=summary, run_dir=folder)


_OPTIONS = {part.name for part in fields(EvalConfig)} - {"env", "policy"}


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
    if isinstance(policy, str):
        given = sampled_as_the_run(policy, given, note_on_stderr)
    return {"env": names[0], "policy": names[1], **given}


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
) -> tuple[EvalConfig, Path]:
    """Return the options and the folder of a new evaluation, after checking all arguments.

    Raises:
        UsageError: the environment or policy is unknown, or the folder is in use. No folder has been made then.
    """
    env = with_id(given["env"])
    config = checked(EvalConfig, {**given, "env": env, "kwargs": plain_arguments(env, given.get("kwargs", {}))})
    config = replace(config, scoring=asdict(config.scorers) if config.scoring else {})
    with closing(env_maker(config, objects)()) as probe:
        config = with_parts_of(probe, config)
    if objects.make_agent is None:
        check_policy(config.policy, config)
    for other in config.others.values():
        check_policy(other, replace(config, verify={}))
    name = config.env if objects.make_env else id_of(config.env, config.kwargs)
    folder = new_run_dir(f"eval-{name.rpartition('/')[2].lower()}", run_dir)
    keep_config(folder, {"eval": config.values("env", "size", "model")})
    return config, folder


def env_maker(config: EvalConfig, given: PythonObjects) -> Callable[[], Env]:
    """Return a function that makes an instance of the evaluated environment."""
    if given.make_env is None:
        return partial(make, id_of(config.env, config.kwargs), **config.kwargs)

    def checked() -> Env:
        assert given.make_env is not None
        made = given.make_env(**typed_arguments(config.env, given.make_env, config.kwargs))
        if not isinstance(made, Env):
            raise UsageError(f"{config.env}() made a {type(made).__name__}, expected a subclass of agentgym.Env")
        return made

    return checked


def _tasks_of(config: EvalConfig, make_env: Callable[[], Env], status: Console) -> tuple[list[Task], EvalConfig]:
    """Return the tasks, each repeated as planned, and the sampling settings, including a worked example."""
    probe = make_env()
    tasks = require_tasks(probe.tasks, config.split, config.env)[: config.episodes]
    model = _with_example(config, probe)
    probe.close()
    if len(tasks) < config.episodes:
        status.print(f"the split {config.split} has {len(tasks)} tasks; evaluating on all of them")
    return [*tasks] * config.repeats, model


async def play(
    config: EvalConfig,
    folder: Path,
    limits: Mapping[str, Any],
    *,
    resume: bool = False,
    status: Console | None = None,
    bars: Bars = episode_progress,
    given: PythonObjects = PythonObjects(),
    forfeits_count: bool = False,
) -> runner.EvalSummary:
    """Run the planned evaluation and write the episodes and the summary to its folder.

    Args:
        status: the console for progress and remarks; by default standard error.
        bars: context manager that shows the progress.
        forfeits_count: a player that forfeits has lost to the policy; by default its game is void.
    """
    status = status or VisibleConsole(file=sys.stderr, highlight=False)
    # only endpoints of other parts are counted, so only those need a price
    endpoints = [policy for policy in config.others.values() if inner_policy(policy).startswith(ENDPOINT)]
    spending = Spending(folder, limits, [config.policy, *endpoints])
    num_envs = spending.limits.num_envs
    with kept_in(spending.ledger(folder, config.policy, *config.others.values())):
        make_env = env_maker(config, given)
        name = config.env if given.make_env else id_of(config.env, config.kwargs)
        tasks, model = _tasks_of(config, make_env, status)
        facts = {} if given.make_agent else policy_facts(config.policy)
        note_versions(
            folder,
            status,
            env=name,
            tasks=digest([[task.id, task.content_hash] for task in tasks]),
            policy={"name": config.policy, **facts},
            own_files=journal.own_files(config.values("env", "size", "model")),
        )
        num_slots = max(1, min(num_envs, len(tasks)))
        made = given.make_agent
        if made is None and resume and runner.is_complete(folder, [folder]):
            made = runner.complete_policy  # a new price, say, needs no endpoint that answers
        async with AsyncExitStack() as opened:
            make_agent = made or await opened_in(opened, config.policy, model, num_slots, folder)
            cast = await cast_of(opened, model, num_slots, forfeits_count=forfeits_count)
            count = opened.enter_context(bars(status, len(tasks)))
            own = play_of(spending, replace(config, num_envs=num_envs), make_agent, folder, count, notes_on(status))
            return await play_tasks(replace(own, resume=resume, roles=cast), tasks, make_env, name)


def with_parts_of(env: Env, config: EvalConfig) -> EvalConfig:
    """Return the options with roles by the names of the environment's parts; ``player_1`` stands for ``player 1``.

    Raises:
        UsageError: the environment has no such part, or none is left to the policy; the message names its parts.
    """
    parts = parts_of(env)
    config = replace(config, roles={part_name(name): policy for name, policy in config.roles.items()})
    if unknown := [part for part in config.roles if part not in parts]:
        raise UsageError(
            f"roles.{unknown[0]}: {config.env} has no sub-agent or player of that name; it has "
            f"{', '.join(parts) or 'none'}"
        )
    if isinstance(env, MatchEnv) and parts and not of_policy(env.players, config.others, 0):
        raise UsageError(f"roles: they play all of {', '.join(env.players)} of {config.env}; leave one to the policy")
    return config


async def cast_of(stack: AsyncExitStack, config: EvalConfig, num_slots: int, *, forfeits_count: bool = False) -> Cast:
    """Open the policies of other parts, each once, and return the agents of these parts."""
    settings, made = replace(config, verify={}), dict[str, MakeAgent]()
    for policy in config.others.values():
        if policy not in made:
            made[policy] = await opened_in(stack, policy, settings, num_slots)
    return {
        part: RoleAgents(role=part, make_agent=made[policy], loses_by_forfeit=forfeits_count)
        for part, policy in config.others.items()
    }


async def opened_in(
    stack: AsyncExitStack, policy: str, model: EvalConfig, num_slots: int, folder: Path | None = None
) -> MakeAgent:
    """Return what makes the agents of a policy, whose resources are free when the stack is closed."""
    make_agent, close = await open_agents(policy, model, num_slots, folder=folder)
    stack.push_async_callback(close)
    return make_agent


def play_of(
    spending: Spending, config: EvalConfig, make_agent: MakeAgent, out_dir: Path, *watch: Callable[[Trajectory], None]
) -> Play:
    """Return the play of a policy whose episodes count in a budget and are shown to others, too."""
    # a script has no tokens; those of endpoints that play other parts are in the ledger
    price = None if is_scripted(config.policy) else spending.prices.of(config.policy)
    return Play(
        config=config,
        make_agent=make_agent,
        out_dir=out_dir,
        on_episode=both(spending.budget.at(price), *watch),
        on_attempt=spending.budget.end_attempt,
        price=price,
    )


def notes_on(status: Console) -> Callable[[Trajectory], None]:
    """Return a function that prints remarks about episodes."""
    return EpisodeNotes(lambda text: status.print(text, markup=False, soft_wrap=True)).watch


def note_versions(folder: Path, status: Console, **facts: Any) -> None:
    """Record the versions that an evaluation uses in its journal, and report which have changed since it began."""
    if changes := journal.note(folder, **facts):
        told = f"note: this evaluation was begun with other versions ({'; '.join(changes)})"
        status.print(told, markup=False, soft_wrap=True)


def _with_example(config: EvalConfig, env: Env) -> EvalConfig:
    """Return the sampling settings, with a worked example for the prompts if the options ask for one."""
    if not config.context.get("example_turns"):
        return config
    shown = FULL.changed(config.context).with_example(env).examples
    return replace(config, context={**config.context, "examples": [asdict(message) for message in shown]})
