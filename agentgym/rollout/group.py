"""Groups: G episodes of one task from one start state, many groups at a time.

A member whose infrastructure failed runs again in a new environment with the same seeds, up to a limit. Credit and
training leave out members that still fail. A failed member stops neither its siblings nor the run, but a failure rate
above the limit stops the run with the reason. When a group is complete, its other members are cancelled. They do not
count as failures, and ``TrajectoryGroup.cut`` records them, as it does episodes that the rollout strategy stopped.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agentgym.errors import (
    ConfigError,
    EnvError,
    EpisodesFailedError,
    InfrastructureError,
    RunStoppedError,
    boundary,
    first_cause,
)
from agentgym.registry import reference_to
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.episode import Member, Stage
from agentgym.rollout.in_flight import InFlight
from agentgym.rollout.match import failed_to_play
from agentgym.rollout.pool import Pool, is_evidence
from agentgym.rollout.program import Group, Planned
from agentgym.rollout.quorum import Quorum
from agentgym.rollout.request import EpisodeLimits, RolloutRequest, WriteHint
from agentgym.rollout.roles import NO_ROLES, Cast
from agentgym.rollout.waves import AT_ONCE
from agentgym.settings import Count, Fraction, Natural, Settings, check_ranges
from agentgym.types import Status, Task, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from agentgym.rollout.reflection import Reflect

_JUDGE_FAILED = "The judge failed, not the policy or the environment: look at its server (judge.model)"
_ADVICE: Final = {
    "judge": _JUDGE_FAILED,
    "judge_schema": f"{_JUDGE_FAILED}, or set judge.structured=false",
    "attempts": "The scorer of attempts failed, or the policy failed to write its note: check verify.kind and the "
    "endpoints",
    "agent": "The agent's program failed, not the environment: look at its command and at what it printed",
    "opponent": "The opponent breaks the rules, not the environment: play against another one (--opponent, or in "
    "training roles.NAME.policy, or a longer warm start of its weights)",
    "sandbox": "agentgym doctor shows which sandboxes work on this machine",
}
"""Advice by :attr:`~agentgym.types.Trajectory.failed_part`."""
OnEpisode = Callable[[RolloutRequest, Trajectory], None]
"""Called after each finished episode, with its request."""
OnAttempt = Callable[[Trajectory], None]
"""Called after each attempt at an episode, including those that fail and are repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(Settings):
    """Settings of group rollouts."""

    group_size: Count = 8
    min_valid: int = 2
    """Fewest valid members; a group with fewer is dropped and counted."""
    num_envs: Count = 64
    """Number of episodes that run at the same time, over all ranks that play."""
    max_retries: Natural = 2
    """Most retries of an episode after infrastructure failures."""
    max_failure_rate: Fraction = 0.5
    """Share of episodes that failed after all retries above which the run stops."""
    limits: EpisodeLimits = EpisodeLimits()

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 1 <= self.min_valid <= self.group_size:
            raise ConfigError(f"min_valid must be between 1 and group_size ({self.group_size}), got {self.min_valid}")


class GroupPlayer:
    """A runner of groups, limited by the pool and the number of episodes in flight.

    Args:
        seed: sampling seeds derive from (seed, ordinal, member).
        quorum: numbers of members that are started and that complete a group; by default ``group_size`` for both.
        in_flight: limit of episodes in flight, older groups first; by default only the pool limits them.
        on_episode: called with the request and the trajectory of each finished episode; for each player of a game.
        on_attempt: called with the trajectory of each attempt, valid or not, before ``on_episode``.
        roles: models that play sub-agents or players; the policy plays the others.
        env_name: name of the environment in a run that mixes several.
        reflect: lets the policy read a failed episode, for branches that use reflection.
        demonstrator: makes the agents of episodes that the oracle plays.
        write_hint: writes the hints; by default the oracle does.
        write_feedback: comments on turns that earned nothing, in place of hints.
    """

    def __init__(  # noqa: PLR0913  (the names at the call are the documentation)
        self,
        pool: Pool,
        make_agent: MakeAgent,
        config: GroupConfig,
        *,
        seed: int,
        quorum: Quorum | None = None,
        in_flight: InFlight | None = None,
        on_episode: OnEpisode = lambda request, trajectory: None,
        on_attempt: OnAttempt = lambda trajectory: None,
        roles: Cast = NO_ROLES,
        env_name: str = "",
        reflect: Reflect | None = None,
        demonstrator: MakeAgent | None = None,
        write_hint: WriteHint | None = None,
        write_feedback: WriteHint | None = None,
    ) -> None:
        self._reflect, self._demonstrator, self._env_name = reflect, demonstrator, env_name
        self._write_hint, self._write_feedback, self._roles = write_hint, write_feedback, roles
        self._pool, self._make_actor, self._config, self._seed = pool, make_agent, config, seed
        self._quorum = quorum or Quorum(num_started=config.group_size, num_needed=config.group_size)
        self._in_flight = in_flight or InFlight(config.num_envs)
        self._on_episode, self._on_attempt = on_episode, on_attempt

    async def play(
        self,
        ordinal: int,
        task: Task,
        *,
        make_agent: MakeAgent | None = None,
        roles: Cast | None = None,
        num_episodes: int | None = None,
        max_turns: int | None = None,
        program: Planned = AT_ONCE,
    ) -> TrajectoryGroup:
        """Run episodes of a task until the group is complete.

        Args:
            ordinal: position of the task in the run's task order.
            make_agent, roles: by default the player's own.
            num_episodes: by default ``group_size``.
            max_turns: most turns of an episode, beside the environment's own limit.
            program: plays the group; by default all episodes begin at the start of the task, at once.
        """
        request = RolloutRequest(
            task=task,
            make_agent=make_agent or self._make_actor,
            roles=self._roles if roles is None else roles,
            ordinal=ordinal,
            limits=self._config.limits,
            max_turns=max_turns,
            write_hint=self._write_hint,
            write_feedback=self._write_feedback,
        )
        size = self._config.group_size if num_episodes is None else num_episodes
        quorum = self._quorum
        if num_episodes is not None:
            quorum = quorum.resized(num_episodes - self._config.group_size, self._config.group_size)
        stage = Stage(
            play=self._play_member,
            request=request,
            seed=self._seed,
            program=program.name,
            uses=program.uses,
            reflect=self._reflect,
            demonstrator=self._demonstrator,
        )
        return await Group(stage, size, program, quorum).run(program.play, self._env_name)

    async def _play_member(self, member: Member) -> tuple[Trajectory, ...]:
        async with self._in_flight.slot((member.request.ordinal, member.request.member)):
            played = await self._play_until_valid(member)
        if member.is_demonstration:
            played = tuple(replace(trajectory, is_demonstration=True) for trajectory in played)
        for trajectory in played:
            if not trajectory.is_stopped:
                self._on_episode(member.request, trajectory)
        return played

    async def _play_until_valid(self, member: Member) -> tuple[Trajectory, ...]:
        voids: tuple[str, ...] = ()
        for num_retries in range(self._config.max_retries + 1):
            request = member.begin(num_retries, self._in_flight.observe)
            try:
                with boundary(EnvError, "the episode"):
                    played = await self._pool.play(request)
            except InfrastructureError as error:  # the environment could not be made, or its worker died
                played = (failed_to_play(request, error),)
            for trajectory in played:
                self._on_attempt(trajectory)
            voids += played[0].voids
            if is_evidence(played):
                break
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError  # the failure took its place
        return (replace(played[0], voids=voids), *played[1:]) if voids else played


async def run_groups(  # noqa: PLR0913  (the names at the call are the documentation)
    tasks: Sequence[tuple[int, Task]],
    pool: Pool,
    make_agent: MakeAgent,
    config: GroupConfig,
    *,
    seed: int,
    on_episode: OnEpisode = lambda request, trajectory: None,
    on_attempt: OnAttempt = lambda trajectory: None,
    roles: Cast = NO_ROLES,
    in_flight: InFlight | None = None,
    kept: Sequence[TrajectoryGroup] = (),
) -> tuple[TrajectoryGroup, ...]:
    """Call :meth:`GroupPlayer.play` for every (ordinal, task), all at once.

    It stops as soon as too many of all episodes have failed, if more than ``num_envs`` are left.

    Args:
        kept: groups that were played before. They count in the share of failed episodes.

    Raises:
        EpisodesFailedError: more than ``max_failure_rate`` of the episodes failed.
    """
    num_all = sum(len(group.trajectories) for group in kept) + len(tasks) * config.group_size
    num_played, failed = 0, list[Trajectory]()

    def watch(request: RolloutRequest, trajectory: Trajectory) -> None:
        nonlocal num_played
        on_episode(request, trajectory)
        if trajectory.seed == request.seed:  # other players of a game have seeds of their own
            num_played += 1
            if not trajectory.status.is_evidence:
                failed.append(trajectory)
        if len(failed) > config.max_failure_rate * num_all and num_all - num_played > config.num_envs:
            raise _too_many_failed(failed, num_played, config)

    player = GroupPlayer(
        pool,
        make_agent,
        config,
        seed=seed,
        on_episode=watch,
        on_attempt=on_attempt,
        roles=roles,
        in_flight=in_flight,
    )
    try:
        async with asyncio.TaskGroup() as running:  # an error in one group cancels the others
            jobs = [running.create_task(player.play(ordinal, task)) for ordinal, task in tasks]
    except BaseExceptionGroup as error:
        if isinstance(first := first_cause(error), EpisodesFailedError):
            raise first from None
        raise
    groups = tuple(job.result() for job in jobs)
    check_rollouts([*kept, *groups], config)
    return groups


def check_rollouts(groups: Sequence[TrajectoryGroup], config: GroupConfig, setting: str = "") -> None:
    """Raise an error if the infrastructure fails too often, or if all first prompts are too long.

    Args:
        setting: name of ``max_failure_rate`` where the user can set it.

    Raises:
        EpisodesFailedError: more than ``max_failure_rate`` of the episodes failed; the message gives the most frequent
            reason.
        RunStoppedError: no episode had room for a turn.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if trajectories and all(t.status is Status.TRUNCATED_TOKENS and not t.turns for t in trajectories):
        raise RunStoppedError(f"no episode of {len(trajectories)} had room for a turn: {trajectories[0].error}")
    failed = [t for t in trajectories if not t.status.is_evidence]
    if len(failed) > config.max_failure_rate * len(trajectories):
        raise _too_many_failed(failed, len(trajectories), config, setting)


def _too_many_failed(
    failed: Sequence[Trajectory], num_played: int, config: GroupConfig, setting: str = ""
) -> EpisodesFailedError:
    limit = f" ({setting}={config.max_failure_rate:g})" if setting else ""
    is_graded = _worst(failed).failed_part in ("judge", "judge_schema")  # a judge grades episodes that ended
    retried = "" if is_graded else f", after {config.max_retries} retries each"
    return EpisodesFailedError(
        f"{len(failed)} of {num_played} episodes failed because of the infrastructure{retried}{limit}; "
        f"{_most_often(failed)}. {_how_to_find(failed, num_played)}"
    )


def failures_of(groups: Sequence[TrajectoryGroup]) -> str:
    """Return a sentence about failed episodes and their remedy; empty if there are none."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [t for t in trajectories if not t.status.is_evidence]
    if not failed:
        return ""
    return (
        f"{len(failed)} of {len(trajectories)} episodes failed and are left out; {_most_often(failed)}. Metrics "
        f"status/* count them in every step. {_how_to_find(failed, len(trajectories))}"
    )


def _how_to_find(failed: Sequence[Trajectory], num_played: int) -> str:
    """Return advice by the operation that failed most often."""
    worst = _worst(failed)
    if advice := _ADVICE.get(worst.failed_part):
        return advice
    if worst.status is Status.ABORTED:
        where = "its code, its endpoint or, in training, its engine (engine.kind)"
        return f"The policy failed, not the environment: look at {where}"
    # enough episodes to see a fault of this rate a few times
    num_episodes = max(20, math.ceil(5 * num_played / len(failed) / 10) * 10)
    return f"agentgym check {reference_to(worst.env_id)} --episodes {num_episodes} looks for faults of the environment"


def _most_often(failed: Sequence[Trajectory]) -> str:
    worst = _worst(failed)
    count = sum(_reason(one) == _reason(worst) for one in failed)
    return f"most often ({count}x): {_reason(worst)}"


def _worst(failed: Sequence[Trajectory]) -> Trajectory:
    """Return one of the trajectories with the most frequent reason."""
    reason = Counter(map(_reason, failed)).most_common(1)[0][0]
    return next(one for one in failed if _reason(one) == reason)


def _reason(failed: Trajectory) -> str:
    return failed.error or failed.status
