"""A simulator of rollout schedules: it replays a run's recorded seconds under another schedule, in virtual time.

The code of the trainer starts, awaits, overtakes and cancels the groups (:class:`GroupStream`, :func:`first_valid`,
:class:`InFlight`). Only environments, engine and trainer are replaced by their recorded seconds.

The engine is a processor that works in ticks. Each tick samples one token of every running request and reads the new
prompts, at the costs fitted to the recording (:class:`EngineCost`). Rendering and parsing share the processor, as they
do in one process. New weights make the engine read every context again. Without tick counters a completion takes as
long as it was recorded, whatever the load.

Not simulated: other episodes under other weights, memory limits, and processors that share more than
``overlap_slowdown`` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from traces import EngineCost, EpisodeTrace, Recording, TurnTrace
from virtual_time import run_in_virtual_time

from agentgym.errors import ConfigError
from agentgym.rollout.in_flight import InFlight
from agentgym.rollout.quorum import Quorum, first_valid
from agentgym.rollout.stream import GroupStream
from agentgym.types import Task, TrajectoryGroup

Mode = Literal["sync", "async"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule, in the words of ``pipeline.*`` and ``group.*``."""

    mode: Mode = "sync"
    num_steps: int = 10
    groups_per_step: int = 8
    max_staleness: int = 1
    num_envs: int = 64
    """Episodes that are played at the same time."""
    over_provision: int = 0
    num_engines: int = 1
    """Engines like the recorded one; an episode stays with the one that had the fewest when it began."""
    overlap_slowdown: float = 1.0
    """Factor by which a tick and a gradient slow down while the other runs on the same processors."""

    def __post_init__(self) -> None:
        if min(self.num_steps, self.groups_per_step, self.num_envs, self.num_engines) < 1:
            raise ConfigError("num_steps, groups_per_step, num_envs and num_engines must be at least 1")
        if self.over_provision < 0 or self.max_staleness < 0 or self.overlap_slowdown < 1:
            raise ConfigError("over_provision and max_staleness must be at least 0, overlap_slowdown at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The speed, load and staleness of a plan."""

    wall_s: float
    num_episodes: int
    """Episodes that were trained, without cancelled ones."""
    num_cut: int
    engine_busy_share: float
    """Share of the time in which an engine has a request, rendering left out; mean over engines."""
    trainer_busy_share: float
    waiting_share: float
    """Share of the time in which the trainer waits for groups."""
    staleness_mean: float
    """Over sampled tokens, versions between the one that sampled it and the one it trains."""
    staleness_max: int

    @property
    def episodes_per_hour(self) -> float:
        """Episodes trained per hour."""
        return 3600 * self.num_episodes / self.wall_s


def simulate(plan: Plan, recording: Recording) -> Prediction:
    """Replay the recording's episodes under a plan, in the order of their ordinals, from the start if they run out.

    Example (two groups of one episode a step, 1 s and 3 s long; training takes 2 s):
        >>> groups = tuple((((TurnTrace(env_s=s)),),) for s in (1.0, 3.0))
        >>> recording = Recording(groups=groups, gradient_s=2.0, engine=EngineCost(tick_s=0.0, token_s=0.0))
        >>> simulate(Plan(num_steps=1, groups_per_step=2), recording).wall_s
        5.0
    """
    return run_in_virtual_time(_Simulation(plan, recording).run())


class _Simulation:
    def __init__(self, plan: Plan, recording: Recording) -> None:
        self.plan, self.recording = plan, recording
        self.version = 0
        self.trainer_is_busy = False
        self.training_s = 0.0
        self.played: dict[int, _Played] = {}
        self.in_flight = InFlight(plan.num_envs)
        self.engines = [_Engine(self) for _ in range(plan.num_engines)]

    async def run(self) -> Prediction:
        plan = self.plan
        self.stream = GroupStream(
            self._play,
            groups_per_step=plan.groups_per_step,
            max_staleness=plan.max_staleness if plan.mode == "async" else 0,
            num_groups=plan.num_steps * plan.groups_per_step,
        )
        ages: list[tuple[int, int]] = []
        num_episodes = num_cut = 0
        waiting_s = 0.0
        for self.version in range(plan.num_steps):
            waiting_s += await self._step()
            for group in self.step_groups:
                played = self.played.pop(group.ordinal)
                ages += [(self.version - version, num_tokens) for version, num_tokens in played.tokens]
                num_episodes += played.num_episodes
                num_cut += played.num_cut
            for engine in self.engines:
                engine.version = self.version + 1
        wall_s = _now()
        num_tokens = sum(count for _, count in ages)
        return Prediction(
            wall_s=wall_s,
            num_episodes=num_episodes,
            num_cut=num_cut,
            engine_busy_share=sum(engine.busy_s for engine in self.engines) / (len(self.engines) * wall_s),
            trainer_busy_share=self.training_s / wall_s,
            waiting_share=waiting_s / wall_s,
            staleness_mean=sum(age * count for age, count in ages) / max(1, num_tokens),
            staleness_max=max((age for age, _ in ages), default=0),
        )

    # ---------------------------------------------------------------------------------------------- the trainer

    async def _step(self) -> float:
        """Wait for a step's groups and train on them; return the seconds waited."""
        began = _now()
        self.step_groups = await self.stream.take(self.version)
        waited_s = _now() - began
        await self._train(self.recording.gradient_s + self.recording.other_training_s)
        return waited_s

    async def _train(self, seconds: float) -> None:
        is_overlapped = self.in_flight.num_playing > 0
        actual_s = seconds * (self.plan.overlap_slowdown if is_overlapped else 1.0)
        self.trainer_is_busy = True
        await asyncio.sleep(actual_s)
        self.trainer_is_busy = False
        self.training_s += actual_s

    # ---------------------------------------------------------------------------------------------- the episodes

    async def _play(self, ordinal: int) -> TrajectoryGroup:
        recorded = self.recording.groups[ordinal % len(self.recording.groups)]
        quorum = Quorum(num_started=len(recorded) + self.plan.over_provision, num_needed=len(recorded))
        traces = [self._trace(recorded, ordinal, member) for member in range(quorum.num_started)]
        episodes = [asyncio.ensure_future(self._episode((ordinal, at), trace)) for at, trace in enumerate(traces)]
        counting = await first_valid(episodes, lambda tokens: True, quorum.num_needed)
        self.played[ordinal] = _Played(
            num_episodes=len(counting),
            num_cut=len(episodes) - len(counting),
            tokens=[pair for at in counting for pair in episodes[at].result()],
        )
        return TrajectoryGroup(ordinal=ordinal, task=_TASK, trajectories=())

    def _trace(self, recorded: Sequence[EpisodeTrace], ordinal: int, member: int) -> EpisodeTrace:
        """Return a recorded member; surplus members are taken from the groups that follow."""
        if member < len(recorded):
            return recorded[member]
        other = self.recording.groups[(ordinal + member) % len(self.recording.groups)]
        return other[member % len(other)]

    async def _episode(self, priority: tuple[int, int], trace: EpisodeTrace) -> list[tuple[int, int]]:
        """Play one episode; return (version, tokens) of each of its turns."""
        sampled = []
        async with self.in_flight.slot(priority):
            engine = min(self.engines, key=lambda candidate: candidate.num_sessions)
            engine.num_sessions += 1
            try:
                session = _Session()
                for turn in trace:
                    sampled.append((await engine.generate(session, turn), turn.num_sampled_tokens))
                    await asyncio.sleep(turn.env_s)
            finally:
                engine.num_sessions -= 1
        return sampled


@dataclass(slots=True)
class _Session:
    """An episode's cache in an engine."""

    num_tokens: int = 0
    version: int = 0
    """Version of the weights that computed its cache."""


@dataclass(slots=True, eq=False)
class _Request:
    done: asyncio.Future[None]
    num_to_read: int
    num_to_sample: int


@dataclass(frozen=True, slots=True)
class _Played:
    num_episodes: int
    num_cut: int
    tokens: list[tuple[int, int]] = field(default_factory=list)


class _Engine:
    """An engine that ticks while it has requests; see :class:`EngineCost`."""

    def __init__(self, simulation: _Simulation) -> None:
        self._simulation = simulation
        self._processor = asyncio.Lock()
        self._requests: list[_Request] = []
        self._ticking: asyncio.Task[None] | None = None
        self.version = 0
        self.busy_s = 0.0
        self.num_sessions = 0

    async def generate(self, session: _Session, turn: TurnTrace) -> int:
        """Render, sample and parse; return the version that samples."""
        if turn.render_s:
            async with self._processor:
                await asyncio.sleep(turn.render_s)
        version = self.version
        cost = self._simulation.recording.engine
        if cost is None:
            self.busy_s += turn.generate_s / max(1, self.num_sessions)
            await asyncio.sleep(turn.generate_s)
            return version
        num_to_read = turn.num_prompt_tokens + (session.num_tokens if session.version != version else 0)
        session.version = version
        session.num_tokens += turn.num_prompt_tokens + turn.num_sampled_tokens
        if turn.num_sampled_tokens:
            request = _Request(asyncio.get_running_loop().create_future(), num_to_read, turn.num_sampled_tokens)
            self._requests.append(request)
            if self._ticking is None or self._ticking.done():
                self._ticking = asyncio.ensure_future(self._tick(cost))
            await request.done
        return version

    async def _tick(self, cost: EngineCost) -> None:
        while self._requests:
            async with self._processor:
                running = [request for request in self._requests if not request.done.done()]
                num_tokens = sum(request.num_to_read + 1 for request in running)
                slowdown = self._simulation.plan.overlap_slowdown if self._simulation.trainer_is_busy else 1.0
                tick_s = cost.seconds(num_tokens) * slowdown if running else 0.0
                await asyncio.sleep(tick_s)
                self.busy_s += tick_s
            for request in running:
                request.num_to_read = 0
                request.num_to_sample -= 1
                if not request.num_to_sample and not request.done.done():
                    request.done.set_result(None)
            self._requests = [request for request in self._requests if not request.done.done()]


def _now() -> float:
    return asyncio.get_running_loop().time()


_TASK = Task(id="recorded", split="", seed=0)
