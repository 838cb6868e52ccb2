"""A game of several players: one policy (or one and its opponent) in all seats, a trajectory for each.

Every player is played as an ordinary episode (:func:`~agentgym.rollout.loop.run_episode`) in an environment of its own,
a seat at the shared game: its ``reset`` and ``step`` return when it is the player's turn, or the game is over. So a
player has its own conversation, token buffer, limits and reward, and whatever works for one player works for several.

What the infrastructure spoils for one player it spoils for all: nobody knows how the game would have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentgym.env import Action, Env, StepReturn
from agentgym.errors import EnvError, UsageError, boundary
from agentgym.game_env import GameEnv
from agentgym.rollout.actor import MakeActor
from agentgym.rollout.loop import EpisodeLimits, run_episode
from agentgym.rollout.seeds import derive_seed
from agentgym.types import (
    Message,
    Observation,
    RewardPart,
    Segment,
    Status,
    Task,
    ToolSpec,
    Trajectory,
    Turn,
)

_WAITING = EpisodeLimits(reset_timeout_s=1e9, step_timeout_s=1e9)
"""A seat waits for the other players; only the game's own steps are limited."""


async def play_task(
    env: Env,
    task: Task,
    make_actor: MakeActor,
    limits: EpisodeLimits,
    *,
    seed: int,
    opponent: MakeActor | None = None,
    num_retries: int = 0,
    on_turn: Callable[[Turn], None] = lambda turn: None,
) -> tuple[Trajectory, ...]:
    """Play one task: an episode of one policy, or a game with a trajectory for each player.

    Args:
        opponent: plays all seats but one, which the seed draws; only the policy's trajectory is given.

    Returns:
        Trajectories by player. A player that never came to move has none.

    Raises:
        EnvError: a game could not be begun.
        UsageError: an opponent is given, and the environment has one player.
    """
    if isinstance(env, GameEnv) and env.num_players > 1:
        seats = _seating(env.num_players, make_actor, opponent, seed)
        return await play_match(env, task, seats, limits, num_retries=num_retries, on_turn=on_turn)
    if opponent is not None:
        raise UsageError(f"{env.env_id} is played by one player, so nobody can play against it; is opponent=self set?")
    trajectory = await run_episode(
        env, task, make_actor(env, seed), limits,
        seed=seed, num_retries=num_retries, make_actor=make_actor, on_turn=on_turn,
    )  # fmt: skip
    return (trajectory,)


@dataclass(frozen=True, slots=True)
class Seating:
    """Who plays a seat, with what seed, and whether its trajectory is wanted."""

    make_actor: MakeActor
    seed: int
    is_kept: bool = True


def _seating(num_players: int, policy: MakeActor, opponent: MakeActor | None, seed: int) -> tuple[Seating, ...]:
    seeds = [derive_seed(seed, "player", player) for player in range(num_players)]
    if opponent is None:
        return tuple(Seating(policy, of_player) for of_player in seeds)
    chosen = derive_seed(seed, "seat") % num_players
    return tuple(
        Seating(policy, seed) if player == chosen else Seating(opponent, seeds[player], is_kept=False)
        for player in range(num_players)
    )


async def play_match(
    env: GameEnv,
    task: Task,
    seats: Sequence[Seating],
    limits: EpisodeLimits,
    *,
    num_retries: int = 0,
    on_turn: Callable[[Turn], None] = lambda turn: None,
) -> tuple[Trajectory, ...]:
    """Play one game to its end; see :func:`play_task`."""
    with boundary(EnvError, f"{env.env_id} reset"):
        async with asyncio.timeout(limits.reset_timeout_s):
            await env.areset(seed=task.seed, options={"task": task})
    match = _Match(env, limits)

    async def sit(player: int, seating: Seating) -> Trajectory:
        seat = _Seat(match, player)
        trajectory = await run_episode(
            seat,
            task,
            seating.make_actor(seat, seating.seed),
            _WAITING,
            seed=seating.seed,
            num_retries=num_retries,
            on_turn=on_turn if seating.is_kept else lambda turn: None,
        )
        return await match.leave(player, replace(trajectory, player=player))

    playing = [asyncio.ensure_future(sit(player, seating)) for player, seating in enumerate(seats)]
    try:
        played = await asyncio.gather(*playing)
    finally:
        for job in playing:  # one that raised leaves no other behind
            job.cancel()
    return tuple(trajectory for trajectory, seating in zip(played, seats, strict=True) if seating.is_kept)


class _Match:
    """The game that the seats share."""

    def __init__(self, env: GameEnv, limits: EpisodeLimits) -> None:
        self.env, self._limits = env, limits
        self.is_over = False
        self._failure: str | None = None
        self._changed = asyncio.Condition()

    async def turn_of(self, player: int) -> None:
        """Wait until a player is on, or the game is over.

        Raises:
            EnvError: the infrastructure spoilt the game for another player.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_over or self._failure or self.env.player == player)
        if self._failure is not None:
            raise EnvError(f"the game was spoilt for another player: {self._failure}")

    async def move(self, action: Action) -> StepReturn:
        """Take the move of the player who is on."""
        async with asyncio.timeout(self._limits.step_timeout_s):
            stepped = await self.env.astep(action)
        self.is_over = stepped[2] or stepped[3]
        await self._tell()
        return stepped

    async def leave(self, player: int, trajectory: Trajectory) -> Trajectory:
        """A player's episode has ended: end the game for the others, and settle what this one gets."""
        if not trajectory.status.is_evidence:
            if self.is_over and self._failure is None and not trajectory.turns:  # won or lost before its first move
                won = self.env.success_of(player)
                return replace(trajectory, status=Status.COMPLETED, error=None, success=won)
            self._failure = self._failure or trajectory.error or str(trajectory.status)
            await self._tell()
            return trajectory
        if self.is_over:
            return trajectory
        self.env.forfeit(player)  # its context is full, or the environment will have no more of it
        self.is_over = True
        await self._tell()
        return _with_parts(trajectory, self.env.parts_of(player))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Seat(Env):
    """The game as one player sees it: an environment of one player."""

    def __init__(self, match: _Match, player: int) -> None:
        self._match, self._player = match, player
        super().__init__()

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        await self._match.turn_of(self._player)
        if self._match.is_over:
            raise EnvError("the game was over before this player's first move")
        return self._match.env.said_to(self._player), {}

    async def astep(self, action: Action) -> StepReturn:
        stepped = await self._match.move(action)
        is_valid = stepped[4]["is_valid"]
        await self._match.turn_of(self._player)
        game = self._match.env
        said = game.said_to(self._player)
        if not self._match.is_over:
            return said if is_valid else stepped[0], 0.0, False, False, {"reward_parts": (), "is_valid": is_valid}
        parts = game.parts_of(self._player)
        info = {"reward_parts": parts, "is_valid": is_valid, "success": game.success_of(self._player)}
        return said, sum(part.value for part in parts), True, False, info

    @property
    def env_id(self) -> str:
        return self._match.env.env_id

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._match.env.tools

    def state_key(self) -> str:
        return self._match.env.state_key()

    def oracle(self) -> Message:
        return self._match.env.oracle()

    def admissible_actions(self) -> tuple[str, ...]:
        return self._match.env.admissible_actions()

    def parse_action(self, text: str) -> Message:
        return self._match.env.parse_action(text)


def _with_parts(trajectory: Trajectory, parts: tuple[RewardPart, ...]) -> Trajectory:
    """A trajectory whose last turn has gained reward parts; one without turns has no place for them."""
    if not trajectory.turns:
        return trajectory
    *before, segment = trajectory.segments
    *earlier, turn = segment.turns
    last = replace(turn, reward_parts=(*turn.reward_parts, *parts))
    return replace(trajectory, segments=(*before, Segment((*earlier, last))))
