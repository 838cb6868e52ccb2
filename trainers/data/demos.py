"""Demonstrations: episodes of an environment's oracle, with a share of random actions, in a model's tokens."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from agentgym.call_syntax import format_call
from agentgym.check.policies import random_action, random_tool_call
from agentgym.env.actions import gold_action
from agentgym.env.env import Env
from agentgym.env.live import LIVE_EPISODES, Connections, service_of
from agentgym.env.time_limit import time_limit
from agentgym.errors import HungError, RunStoppedError, UsageError, error_text
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import DemonstrationAgent, MakeAgent
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import Pool
from agentgym.rollout.request import EpisodeLimits
from agentgym.rollout.roles import RoleAgents
from agentgym.rollout.seeds import derive_seed
from agentgym.types import Message, Observation, Task, ToolCall, ToolSpec, Trajectory

_FEW_FAILURES, _FEW_HANGS = 3, 1
"""Numbers by which failed, or hung, tasks may exceed the played ones before the environment counts as broken."""


class Demonstrator:
    """The environment's oracle with a share ``noise`` of its actions replaced by random ones.

    Half of the random actions are possible in the current state. The other half are drawn from the tools' schemas and
    mostly impossible, so that the demonstrations also show how to continue after an error.
    """

    def __init__(self, env: Env, noise: float, seed: int) -> None:
        self._env, self._noise, self._rng = env, noise, np.random.default_rng(seed)
        self.was_random = False
        """True if the last action replaced the oracle's; always False with ``noise=1``, which has no oracle."""

    def __call__(self, observation: Observation) -> Message:
        """Choose the next action."""
        is_random = self._rng.random() < self._noise
        self.was_random = is_random and self._noise < 1
        if not is_random:
            return gold_action(self._env)
        of_schemas = self._env.tools and self._rng.random() < 0.5
        return (random_tool_call if of_schemas else random_action)(self._env, observation, self._rng)


async def collect_demos(  # noqa: PLR0913  (the names at the call are the documentation)
    tasks: Sequence[tuple[int, Task]],
    pool: Pool,
    renderer: ChatRenderer,
    *,
    noise: float,
    max_context_tokens: int,
    max_new_tokens: int = 64,
    context: ContextConfig = FULL,
    group: GroupConfig = GroupConfig(),  # noqa: B008  (frozen)
    seed: int,
    others: Mapping[str, MakeAgent | None] = MappingProxyType({}),
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> tuple[Trajectory, ...]:
    """Play one noisy oracle episode of each task, and return the valid trajectories with token ids.

    Args:
        max_context_tokens, max_new_tokens, context: settings of the policy that learns from the demonstrations.
        group: limits of an episode, its retries, and the share of failed episodes above which an error is raised.
        others: who plays the sub-agents and players whose turns are no demonstrations for the policy; None for the
            oracle.

    Raises:
        EpisodesFailedError: too many episodes failed.
    """

    def make_agent(env: Env, member_seed: int) -> DemonstrationAgent:
        return DemonstrationAgent(
            Demonstrator(env, noise, member_seed),
            renderer.for_words(env.takes_words),
            max_context_tokens,
            max_new_tokens,
            context,
            env.max_turns,
        )

    groups = await run_groups(
        tasks,
        pool,
        make_agent,
        replace(group, group_size=1, min_valid=1),
        seed=derive_seed(seed, "demos"),
        roles={part: RoleAgents(role=part, make_agent=own or make_agent) for part, own in others.items()},
        on_episode=lambda _, trajectory: on_episode(trajectory),
    )
    return tuple(trajectory for group in groups for trajectory in group.valid if trajectory.segments)


def collect_texts(  # noqa: PLR0913  (the names at the call are the documentation)
    make_env: Callable[[], Env],
    tasks: Sequence[Task],
    *,
    seed: int,
    track: Callable[[Sequence[Task]], Iterable[Task]] = iter,
    limits: EpisodeLimits = EpisodeLimits(),  # noqa: B008  (frozen)
    max_retries: int = 2,
    reference: str = "ENV",
    say: Callable[[str], None] = lambda line: None,
    on_service: Callable[[str], None] = lambda service: None,
) -> tuple[list[str], list[str]]:
    """Return the texts of some episodes and the words of their valid actions, to train a small tokenizer on.

    The oracle acts, or a random policy if the environment has none. A failed episode is repeated in a new environment
    up to ``max_retries`` times, then left out. If the environment asks a service
    (:attr:`~agentgym.env.env.Env.is_live`), its tools and tasks are read, and only a few episodes are played.

    Args:
        track: yields the tasks, and shows how far it is.
        reference: the environment's name on the command line, for messages.
        say: called with a message when the first episode fails or asks a service, and at the end with the number left
            out.
        on_service: called with the service that the environment asks.

    Raises:
        RunStoppedError: most episodes fail; at the beginning a few failures are enough.
    """
    texts: list[str] = []
    words: set[str] = set()
    advice = f"agentgym check {reference} finds such faults"
    num_played, player = 0, _TextPlayer(make_env, limits, max_retries, lambda line: say(f"{line}; {advice}"))
    service = ""
    try:
        for number, task in enumerate(track(tasks)):
            if not service and (service := player.service):
                on_service(service)
                say(_note_of(service, reference, len(tasks)))
                texts += _told_for_nothing(player.tools, tasks)
            if service and number >= LIVE_EPISODES:
                break
            found = player.play(task, derive_seed(seed, "texts", number))
            if found is not None:
                num_played += 1
                texts += found[0]
                words |= found[1]
            elif len(player.failures) > num_played + player.patience:
                break
    finally:
        player.close()
    if player.failures:
        task, error = player.failures[-1]
        line = (
            f"{len(player.failures)} of {len(player.failures) + num_played} episodes failed, last task {task.id}: "
            f"{error_text(error)}"
        )
        if len(player.failures) > num_played:
            raise RunStoppedError(f"no tokenizer can be trained: {line}; {advice}") from error
        say(f"note: the tokenizer is trained without some texts, since the environment failed: {line}; {advice}")
    return texts, sorted(words)


def _note_of(service: str, reference: str, num_tasks: int) -> str:
    return (
        f"note: {reference} asks {service}; the tokenizer reads its tools and tasks, and "
        f"{min(num_tasks, LIVE_EPISODES)} episodes in place of {num_tasks} (model.num_text_episodes); is_live = False "
        "in its class plays all"
    )


def _told_for_nothing(tools: Sequence[ToolSpec], tasks: Sequence[Task]) -> list[str]:
    """Return the texts of tools and tasks, which cost no episode."""
    told = [json.dumps(tool.as_function(), ensure_ascii=False) for tool in tools]
    return told + [text for task in tasks for text in _texts_in(task.data)]


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts_in([*value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)


class _TextPlayer:
    """A player that collects the texts of episodes, and repeats a failed episode in a new environment."""

    def __init__(
        self, make_env: Callable[[], Env], limits: EpisodeLimits, max_retries: int, say: Callable[[str], None]
    ) -> None:
        self._make_env, self._limits, self._max_retries, self._say = make_env, limits, max_retries, say
        self._connections = Connections()
        with self._connections.collected():
            self._env = make_env()
        self.tools = self._env.tools
        """Tools of the environment before the first episode."""
        self._has_failed = False
        self.failures: list[tuple[Task, Exception]] = []
        """Tasks that failed in every attempt, each with its last error."""

    def play(self, task: Task, seed: int) -> tuple[list[str], set[str]] | None:
        """Return the texts and words of an episode, or None if every attempt failed."""
        for retries_left in range(self._max_retries, -1, -1):
            try:
                with self._connections.collected():
                    return _texts_of(self._env, task, seed, self._limits)
            except UsageError:
                raise
            except Exception as error:
                if not self._has_failed:
                    self._has_failed = True
                    self._say(f"note: an episode failed while texts were collected, task {task.id}: {error}")
                self.close()
                self._env = self._make_env()
                if not retries_left or isinstance(error, HungError):  # which would hang as long again
                    self.failures.append((task, error))
                    return None
        raise AssertionError("max_retries is at least 0")

    @property
    def service(self) -> str:
        """The service that the environment asks, as far as it is known; empty if there is none."""
        return service_of(self._env, self._connections.found)

    @property
    def patience(self) -> int:
        """Number by which failed tasks may exceed played ones; smaller after a hang, which costs a minute each time."""
        return _FEW_HANGS if self.failures and isinstance(self.failures[-1][1], HungError) else _FEW_FAILURES

    def close(self) -> None:
        """Close the environment; errors are ignored, because a broken environment may also fail to close."""
        with contextlib.suppress(Exception):
            self._env.close()


def _texts_of(env: Env, task: Task, seed: int, limits: EpisodeLimits) -> tuple[list[str], set[str]]:
    """Return the texts of one episode, and the words in its valid actions."""
    limits = limits.of(env)
    texts: list[str] = []
    words: set[str] = set()
    with time_limit(limits.reset_timeout_s, f"{env.env_id} reset"):
        observation, _ = env.reset(options={"task": task})
    choose = Demonstrator(env, 0.3 if has_oracle(env) else 1.0, seed)
    is_over, num_turns = False, 0
    while not is_over and num_turns < limits.max_turns:
        num_turns += 1
        texts += [message.text for message in observation]
        action = choose(observation)
        calls = [call for call in action.calls if isinstance(call, ToolCall)]
        texts += [format_call(call, env.tools) for call in calls] or [action.text]
        with time_limit(limits.step_timeout_s, f"{env.env_id} step"):
            observation, _, terminated, truncated, info = env.step(action)
        if info["is_valid"]:
            named = [str(value) for call in calls for value in call.arguments.values()] or [action.text]
            words.update(word for text in named for word in re.findall(r"[A-Za-z]+", text))
        is_over = terminated or truncated
    return texts, words


def has_oracle(env: Env) -> bool:
    """Return True if the environment has an oracle; it must be in an episode."""
    try:
        gold_action(env)
    except UsageError:
        return False
    return True
