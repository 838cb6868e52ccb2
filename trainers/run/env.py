"""One environment of a run: its tasks, its pools, and the run's configuration with this environment's changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from agentgym.check.policies import random_action
from agentgym.credit.component import ESTIMATORS
from agentgym.credit.trial import check_own_components
from agentgym.env.actions import gold_action
from agentgym.env.env import Env
from agentgym.env.live import service_of
from agentgym.env.match_env import MatchEnv
from agentgym.env.sub_agents import AsksAgents
from agentgym.env.tasks import require_tasks
from agentgym.errors import ConfigError, UsageError
from agentgym.registry import make
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.context import ContextConfig, Room, check_turns_left
from agentgym.rollout.first_prompt import check_tools_fit, require_vision
from agentgym.rollout.plan import TaskSchedule
from agentgym.rollout.pool import Pool
from agentgym.rollout.program_trial import try_program
from agentgym.rollout.replay import RecordRef
from agentgym.rollout.roles import OPPONENT, part_name, parts_of
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.strategies.history import Visit
from agentgym.rollout.strategy_trial import try_strategies
from agentgym.trainers.config.schedules import scheduled
from agentgym.trainers.config.strategy_notes import strategy_notes
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.demos import has_oracle
from agentgym.trainers.scoring.answers import check_references
from agentgym.trainers.scoring.demonstrated import PromptStyle
from agentgym.types import Observation, Task, ToolSpec


def named(what: str, env_name: str) -> str:
    """Return the name of a file or folder of one environment: ``name-env``, or ``name`` in a run on one environment.

    Example:
        >>> named("after", ""), named("after", "household")
        ('after', 'after-household')
    """
    return f"{what}-{env_name}" if env_name else what


MOST_PROBED = 10_000
"""Largest number of training tasks that ``strategy.probe`` plays before RL."""
NO_KWARGS: Final[Mapping[str, object]] = MappingProxyType({})
MakePool = Callable[[Callable[[], Env]], Pool]


class RunEnv:
    """One environment of a run.

    Args:
        name: its name in a mixture; empty in a run on one environment.
        config: the run's configuration with this environment's changes.
        make_pool: creates a pool of environments.
        extra_kwargs: further arguments of the environment that are not part of the configuration, such as addresses.

    Raises:
        ConfigError: the credit or the prompts cannot work with this environment.
    """

    def __init__(
        self, name: str, config: TrainConfig, make_pool: MakePool, extra_kwargs: Mapping[str, object] = NO_KWARGS
    ) -> None:
        self.name = name
        self._env, self._extra_kwargs = config.env, extra_kwargs
        self.pool = make_pool(self._maker({}))
        self.eval_pool = make_pool(self._maker(config.eval.kwargs)) if config.eval.kwargs else self.pool
        self._probe = probe = self.make_env()
        self._tools: tuple[ToolSpec, ...] = ()
        if config.num_steps:  # before a warm start that may take hours
            require_tasks(probe.tasks, "train", config.env.id)
            require_tasks(probe.tasks, config.eval.split, f"eval.split: {config.env.id}")
        tasks = probe.tasks("train")
        if (wanted := config.env.num_train_tasks) > len(tasks):
            raise ConfigError(
                f"env.num_train_tasks={wanted}: {config.env.id} has {len(tasks):,} training tasks; lower it, or set 0 "
                "for all"
            )
        self.train_tasks: Sequence[Task] = tasks[:wanted] if wanted else tasks
        self.eval_tasks: Sequence[Task] = probe.tasks(config.eval.split)
        self.probed: Sequence[Visit] = ()
        """Results of each training task before RL, if ``strategy.probe`` is set."""
        self.pool_of_successes: Mapping[int, Sequence[RecordRef]] = {}
        """Successes before RL that can be replayed, by training task."""
        if config.strategy.probe and len(self.train_tasks) > MOST_PROBED:
            raise ConfigError(
                f"strategy.probe would play {len(self.train_tasks):,} tasks of {config.env.id}: set "
                f"env.num_train_tasks to at most {MOST_PROBED:,}"
            )
        check_turns_left(config.context, probe)
        self.parts = parts_of(probe)
        """Its sub-agents or players, which roles can play; ``opponent`` among them in a game."""
        self.eval_parts = self._check_evaluation(config, probe)
        self.notes: tuple[str, ...] = strategy_notes(config, len(self.train_tasks), probe.max_turns)
        """What the user should know of it when a run begins."""
        self.service = service_of(probe, {})
        """The service that its episodes ask, if that is known; empty otherwise."""
        if config.num_steps and len(self.eval_tasks) < config.eval.num_episodes:
            self.notes = (
                f"eval.num_episodes={config.eval.num_episodes}: {config.env.id} has {len(self.eval_tasks)} tasks "
                f"of the split {config.eval.split}, and an evaluation plays each once; eval.repeats plays them again",
            )
        self.config = dataclasses.replace(config, context=self._context(config, probe))
        _check_sub_agents(config, probe)
        _check_branching(config, probe)
        check_own_components(config.credit)
        try_program(config.strategy, config.group)
        try_strategies(config.strategy, config.group)
        if "answer_logprobs" in config.credit.columns():
            check_references(self.train_tasks)

    def _check_evaluation(self, config: TrainConfig, probe: Env) -> tuple[str, ...]:
        """Check before a warm start that the policy is one player of the evaluation, and return the parts for roles.

        Raises:
            ConfigError: it would play several.
        """
        evaluated = self._maker(config.eval.kwargs)() if config.eval.kwargs else probe
        try:
            if isinstance(evaluated, MatchEnv) and evaluated.num_players > 1:
                free = set(map(part_name, evaluated.players)) - config.parts_of_roles
                if OPPONENT not in config.parts_of_roles and len(free) > 1:
                    raise ConfigError(
                        f"eval.kwargs: the policy would play {len(free)} players in the evaluation of {config.env.id}; "
                        "give it an opponent of the environment (eval.kwargs.opponent, eval.kwargs.earlier of "
                        "SkillChain-v0), or a role (roles.opponent.policy)"
                    )
            return parts_of(evaluated)
        finally:
            if evaluated is not probe:
                evaluated.close()

    def _context(self, config: TrainConfig, probe: Env) -> ContextConfig:
        """Return the context with a worked example, if one is shown: by the oracle, or else by random actions."""
        if not config.context.example_turns or config.context.examples:
            return config.context
        probe.reset(options={"task": self.train_tasks[0]})
        if has_oracle(probe):
            return config.context.with_example(probe)
        rng = np.random.default_rng(derive_seed(config.seed, "worked example"))
        self.notes += (
            f"{config.env.id} has no oracle; the worked example in prompts has random actions, which show form alone",
        )
        return config.context.with_example(probe, lambda env, seen: random_action(env, seen, rng))

    @property
    def key(self) -> str:
        """Name of the environment in checkpoints; never empty."""
        return self.name or "env"

    @property
    def prefix(self) -> str:
        """Prefix of the environment's metrics; empty in a run on one environment."""
        return f"{self.name}/" if self.name else ""

    def at(self, step: int) -> TrainConfig:
        """Return its configuration as it holds at a step of RL, counted from 0."""
        return scheduled(self.config, step)

    def keep_tasks(
        self, tasks: Sequence[Task], probed: Sequence[Visit], successes: Mapping[int, Sequence[RecordRef]]
    ) -> None:
        """Restrict training to some of the training tasks, whose probe results and successes are known."""
        self.train_tasks, self.probed, self.pool_of_successes = tasks, probed, successes

    def make_env(self) -> Env:
        """Create a new environment."""
        return self._maker({})()

    def check_prompts(self, renderer: ChatRenderer) -> None:
        """Check that the tool descriptions fit the model's context, and close the environment used to read them."""
        window = self.config.context.window(self.config.model.max_context_tokens)
        check_tools_fit(renderer, self._probe, window, self.config.sampling.max_completion_tokens)
        self._tools = tuple(self._probe.tools)
        self.close_probe()

    def require_vision(self) -> None:
        """Refuse an environment that needs a model that sees, for one that is built here."""
        require_vision(self._probe)

    def close_probe(self) -> None:
        """Close the environment that the checks used. A second call does nothing."""
        self._probe.close()

    def first_observation(self) -> Observation:
        """Return what the first training task begins with."""
        env = self.make_env()
        try:
            return env.reset(options={"task": self.train_tasks[0]})[0]
        finally:
            env.close()

    def prompt_style(self, renderer: ChatRenderer) -> PromptStyle:
        """Return what first prompts are made of, after :meth:`check_prompts`."""
        config = self.config
        window = config.context.window(config.model.max_context_tokens)
        room = Room(window=window, completion=config.sampling.max_completion_tokens, max_turns=self._probe.max_turns)
        return PromptStyle(
            renderer=renderer.for_words(self._probe.takes_words), context=config.context, tools=self._tools, room=room
        )

    async def close(self) -> None:
        """Close the environments."""
        await self.pool.close()
        await self.eval_pool.close()

    def _maker(self, changes: Mapping[str, object]) -> Callable[[], Env]:
        """Return a picklable factory of environments, with ``changes`` to their arguments."""
        return partial(make, self._env.id, **{**self._env.kwargs, **changes, **self._extra_kwargs})


def demo_tasks(env: RunEnv, count: int) -> list[tuple[int, Task]]:
    """Return the training tasks to demonstrate, each with its index in the order of tasks."""
    return TaskSchedule(env.train_tasks, derive_seed(env.config.seed, "demo tasks")).take(0, count)


def _check_sub_agents(config: TrainConfig, env: Env) -> None:
    """Check that the credit distinguishes an environment's sub-agents from its main agent (composition rule 15).

    Raises:
        ConfigError: it does not; the message names estimators that do.
    """
    if not isinstance(env, AsksAgents):
        return
    frozen = {part for name, role in config.roles.items() if not role.trained for part in role.parts(name)}
    if frozen.issuperset(map(part_name, env.agents)):  # credit sees the main agent alone
        return
    if ESTIMATORS[config.credit.estimator].tells_agents and "answer_logprobs" not in config.credit.columns():
        return
    able = ", ".join(name for name, known in ESTIMATORS.items() if known.tells_agents)
    raise ConfigError(
        f"{env.env_id} asks sub-agents ({', '.join(env.agents)}), whose turns {config.credit.estimator!r}, or the "
        f"shaper information_gain, would take for turns of the main agent: set credit.estimator to one of {able} "
        "without it (composition rule 15)"
    )


def _check_branching(config: TrainConfig, env: Env) -> None:
    """Check that the environment supports the branches and hints that the strategy uses.

    Raises:
        ConfigError: it does not; the message names the environment and the reason.
    """
    strategy = config.strategy
    has_several = isinstance(env, AsksAgents) or (isinstance(env, MatchEnv) and env.num_players > 1)
    if strategy.runs_program and has_several:
        raise ConfigError(f"strategy.program: {env.env_id} has several players or agents; programs play those of one")
    if strategy.branches and has_several:
        raise ConfigError(f"strategy.branching: {env.env_id} has several players or agents; episodes of one can branch")
    if strategy.prunes and has_several:
        raise ConfigError(f"strategy.pruning: {env.env_id} has several players or agents; episodes of one can pause")
    if (strategy.demonstrates or strategy.teaches or strategy.shows_rubric) and has_several:
        raise ConfigError(
            f"strategy.guidance: {env.env_id} has several players or agents, and {strategy.guidance.kind} helps one: "
            "remove it"
        )
    if strategy.needs_oracle:
        try:
            env.reset(options={"task": env.tasks("train")[0]})
            gold_action(env)
        except UsageError as error:
            raise ConfigError(f"strategy: hints and demonstrations are what the oracle would do. {error}") from error
