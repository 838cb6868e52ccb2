"""A game of several players, played by one policy, or by a policy and other roles.

Every player has an ordinary episode (:func:`~agentgym.rollout.loop.run_episode`) in its own environment, a *seat* of
the shared game. A seat's ``reset`` and ``step`` return when it is the player's turn or the game is over. Each player
therefore has its own conversation, token buffer, limits and reward.

If the infrastructure fails for one player, the game fails for all of them, since its result is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agentgym.env.actions import Action
from agentgym.env.env import Env, StepInfo, TypedStep
from agentgym.env.match_env import MatchEnv
from agentgym.error_places import place_of
from agentgym.errors import EnvError, InfrastructureError, UsageError, boundary, failed_part_of
from agentgym.rollout.agent import EpisodePlayer
from agentgym.rollout.loop import run_episode, status_of
from agentgym.rollout.request import EpisodeLimits, RolloutRequest, ignore_turn
from agentgym.rollout.roles import OPPONENT, of_policy, part_name
from agentgym.rollout.seeds import derive_seed
from agentgym.tool import cut_output
from agentgym.types import Message, Observation, RewardPart, Status, ToolSpec, Trajectory

_WAITING = EpisodeLimits(reset_timeout_s=1e9, step_timeout_s=1e9)
"""A seat waits for the other players, so only the steps of the game itself have a time limit."""


async def play_task(env: Env, request: RolloutRequest) -> tuple[Trajectory, ...]:
    """Play one task: an episode, or a game with one episode per player.

    Returns:
        Trajectories by player, of those that the policy and trained roles play. The first one has the turns of the
        others as ``frozen_segments``. A game that could not start or end is one failed trajectory.

    Raises:
        UsageError: the request names an opponent, and the environment has one player.
    """
    with _limited_turns(env, request.max_turns, request.limits.max_turns):
        player = request.make_agent
        if isinstance(env, MatchEnv) and env.num_players > 1:
            if isinstance(player, EpisodePlayer):
                raise UsageError(f"{env.env_id} has several players; a harness plays environments of one player")
            try:
                return await _play_game(env, request)
            except InfrastructureError as error:
                return (failed_to_play(request, error, env.env_id),)
        if OPPONENT in request.roles:
            raise UsageError(f"{env.env_id} has one player and takes no opponent; did you mean to set opponent=self?")
        play = player.play_episode if isinstance(player, EpisodePlayer) else run_episode
        return (await play(env, request),)


def failed_to_play(request: RolloutRequest, error: InfrastructureError, env_id: str = "") -> Trajectory:
    """Return the failed trajectory of a task for which no player's episode tells the reason."""
    said = cut_output(f"{error}{place_of(error.__cause__, or_ours=False)}")
    return Trajectory(
        task=request.task,
        env_id=env_id,
        status=Status.ENV_ERROR,
        segments=(),
        seed=request.seed,
        error=said,
        failed_part=failed_part_of(error),
        num_retries=request.num_retries,
        voids=("reset",),
    )


@contextmanager
def _limited_turns(env: Env, max_turns: int | None, default: int) -> Iterator[None]:
    """Lower the environment's turn limit during the ``with`` block; ``default`` holds if there is none."""
    own = env.max_turns
    env.max_turns = min([limit for limit in (own, max_turns) if limit is not None], default=default)
    try:
        yield
    finally:
        env.max_turns = own


async def _play_game(env: MatchEnv, request: RolloutRequest) -> tuple[Trajectory, ...]:
    with boundary(EnvError, f"{env.env_id} reset"):
        async with asyncio.timeout(request.limits.reset_timeout_s):
            await env.areset(seed=request.task.seed, options={"task": request.task})
    match = _Match(env, request.limits)
    seats = _seats(env, request)

    async def sit(player: int) -> Trajectory:
        played = await run_episode(_Seat(match, player), seats[player].request)
        own = tuple(replace(segment, role=seats[player].role) for segment in played.segments)
        with boundary(EnvError, f"{env.env_id}: the end of the game"):
            return await match.leave(player, replace(played, segments=own, player=player))

    playing = [asyncio.ensure_future(sit(player)) for player in range(env.num_players)]
    try:
        played = await asyncio.gather(*playing)
    finally:
        for job in playing:  # if one task raises, the others must not continue
            job.cancel()
    loser = env.loser
    if loser is not None and not seats[loser].may_lose_by_forfeit:
        raise ForfeitError(
            f"{env.env_id}: the opponent forfeits as {env.players[loser]}, by breaking the rules or out of room, which "
            "says nothing of the policy"
        )
    is_forfeit = match.is_over and loser is not None
    pairs = list(zip(played, seats, strict=True))
    others = tuple(
        replace(segment, agent=env.players[trajectory.player])
        for trajectory, seat in pairs
        if not seat.is_evidence
        for segment in trajectory.segments
    )
    first, *rest = (replace(trajectory, is_forfeit=is_forfeit) for trajectory, seat in pairs if seat.is_evidence)
    return (replace(first, frozen_segments=others), *rest)


class ForfeitError(EnvError):
    """A player that is no evidence about the policy broke the rules, or could not go on."""

    failed_part = "opponent"


@dataclass(frozen=True, slots=True)
class _SeatPlan:
    """A player's episode: its request, and the role that plays it; empty for the policy."""

    request: RolloutRequest
    role: str = ""
    is_evidence: bool = True
    """False if a role without training plays, whose turns say nothing of what is trained."""
    loses_by_forfeit: bool = False

    @property
    def may_lose_by_forfeit(self) -> bool:
        """True if the player's forfeit is a result of the game."""
        return self.is_evidence or self.loses_by_forfeit


def _seats(env: MatchEnv, request: RolloutRequest) -> list[_SeatPlan]:
    """Return the plan of each player's episode.

    The policy has the request's own seed if it plays one player.

    Raises:
        UsageError: the policy plays no player.
    """
    own = of_policy(env.players, request.roles, derive_seed(request.seed, "seat"))
    if not own:
        raise UsageError(f"{env.env_id}: roles play all of {', '.join(env.players)}; leave one of them to the policy")
    seats = []
    for player, name in enumerate(env.players):
        seat = replace(request, limits=_WAITING, seed=derive_seed(request.seed, "player", player))
        if player in own:
            seats.append(_SeatPlan(replace(seat, seed=request.seed) if len(own) == 1 else seat))
            continue
        part = request.roles.get(part_name(name)) or request.roles[OPPONENT]
        on_turn = request.on_turn if part.is_trained else ignore_turn
        request_of_seat = replace(seat, make_agent=part.make_agent, on_turn=on_turn)
        seats.append(_SeatPlan(request_of_seat, part.role, part.is_trained, part.loses_by_forfeit))
    return seats


class _Match:
    """The game that the seats share."""

    def __init__(self, env: MatchEnv, limits: EpisodeLimits) -> None:
        self.env, self._limits = env, limits
        self.is_over = False
        self._failure: str | None = None
        self._failed_part = ""
        self._changed = asyncio.Condition()

    async def turn_of(self, player: int) -> None:
        """Wait until it is the player's turn, or the game is over.

        Raises:
            EnvError: the game failed for another player.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_over or self._failure or self.env.player == player)
        if self._failure is not None:
            failure = EnvError(f"the game failed for another player: {self._failure}")
            failure.failed_part = self._failed_part
            raise failure

    async def move(self, action: Action) -> TypedStep:
        """Make the move of the player whose turn it is."""
        async with asyncio.timeout(self._limits.step_timeout_s):
            stepped = await self.env.astep(action)
        self.is_over = stepped[2] or stepped[3]
        await self._tell()
        return stepped

    async def leave(self, player: int, trajectory: Trajectory) -> Trajectory:
        """End the game for the others after a player's episode, and return its trajectory with the final reward."""
        if not trajectory.status.is_evidence:
            # the game was over before the player's first move
            if self.is_over and self._failure is None and not trajectory.turns:
                won = self.env.success_of(player)
                return replace(trajectory, status=Status.COMPLETED, error=None, success=won, voids=(), is_unplayed=True)
            if self._failure is None:
                self._failure, self._failed_part = trajectory.error or str(trajectory.status), trajectory.failed_part
            await self._tell()
            return trajectory
        if self.is_over:
            return trajectory
        failed = await self._without(player)  # its context is full, or the environment ended its episode
        await self._tell()
        if failed is not None:
            return replace(
                trajectory, status=status_of(failed), success=None, error=self._failure, failed_part=self._failed_part
            )
        return _with_parts(trajectory, self.env.parts_of(player))

    async def _without(self, player: int) -> InfrastructureError | None:
        """Go on without a player, or end the game. Return the error if that failed, which fails the whole game."""
        try:
            with boundary(EnvError, f"{self.env.env_id}: without player {player + 1}"):
                async with asyncio.timeout(self._limits.reset_timeout_s):
                    await self.env.aforfeit(player)
        except InfrastructureError as raised:
            self._failure = f"{raised}{place_of(raised.__cause__, or_ours=False)}"
            self._failed_part = failed_part_of(raised)
            return raised
        self.is_over = self.env.episode.is_over
        return None

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Seat(Env):
    """The game as one player sees it: an environment of one player."""

    def __init__(self, match: _Match, player: int) -> None:
        self._match, self._player = match, player
        super().__init__()

    async def areset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        await self._match.turn_of(self._player)
        if self._match.is_over:
            raise EnvError("the game was over before this player's first move")
        return self._match.env.said_to(self._player), {}

    async def astep(self, action: Action) -> TypedStep:
        stepped = await self._match.move(action)
        is_valid = stepped[4]["is_valid"]
        await self._match.turn_of(self._player)
        game = self._match.env
        said = game.said_to(self._player)
        if not self._match.is_over:
            return said if is_valid else stepped[0], 0.0, False, False, {"reward_parts": (), "is_valid": is_valid}
        parts = game.parts_of(self._player)
        info: StepInfo = {"reward_parts": parts, "is_valid": is_valid, "success": game.success_of(self._player)}
        return said, sum(part.value for part in parts), True, False, info

    @property
    def env_id(self) -> str:
        return self._match.env.env_id

    @property
    def task_type(self) -> str:
        return self._match.env.task_type

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._match.env.tools_for(self._player)

    def state_key(self) -> str:
        return self._match.env.state_key()

    def oracle(self) -> Message:
        return self._match.env.oracle()

    def admissible_actions(self) -> tuple[str, ...]:
        return self._match.env.admissible_actions()

    def parse_action(self, text: str) -> Message:
        return self._match.env.parse_action(text)


def _with_parts(trajectory: Trajectory, parts: tuple[RewardPart, ...]) -> Trajectory:
    """Add reward parts to the last turn; a trajectory without turns does not change."""
    if not trajectory.turns:
        return trajectory
    *before, segment = trajectory.segments
    *earlier, turn = segment.turns
    last = replace(turn, reward_parts=(*turn.reward_parts, *parts))
    return replace(trajectory, segments=(*before, replace(segment, turns=(*earlier, last))))
