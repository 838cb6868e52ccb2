"""The rollouts of RL: groups of episodes, played ahead of training as far as the pipeline allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from agentgym.engine import Engine, EngineHealth, ReportsHealth, SamplingParams
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.group import GroupPlayer
from agentgym.rollout.mixture import Mixture, MixtureState
from agentgym.rollout.plan import EnvPlanner, GroupPlan, GroupPlanner, PlanState
from agentgym.rollout.pulse import Beat, Pulse
from agentgym.rollout.replay import Replayed, Stored, read_again, swapped
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.stream import GroupStream, StreamState
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.outline import TEXT_COLUMNS, GroupMetadata, outlined
from agentgym.trainers.judges.teacher import HintTeacher
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.run.env import RunEnv
from agentgym.trainers.run.run import Run
from agentgym.trainers.types import Metrics
from agentgym.types import TrajectoryGroup


def health_of(engine: Engine | None) -> Callable[[], EngineHealth | None]:
    """Return the engine's function that reports its load, or a function that returns None if it has none."""
    return engine.health if isinstance(engine, ReportsHealth) else lambda: None


def planning_at(env: RunEnv, step: int) -> tuple[StrategyConfig, int]:
    """Return the strategies and the group size of an environment at a step."""
    config = env.at(step)
    return config.strategy, config.group.group_size


class PrefixHits:
    """The prefix cache's hit rate: the share of prompt tokens that the engine had cached, step by step."""

    def __init__(self) -> None:
        self._before = (0, 0)

    def since_last(self, health: EngineHealth | None) -> Metrics:
        """Return ``prefix_hit_share`` since the last call; empty if it is unknown or no prompt was processed."""
        if health is None or health.prefix_tokens is None or health.prefix_hits is None:
            return {}
        (tokens, hits), self._before = self._before, (health.prefix_tokens, health.prefix_hits)
        num_tokens = health.prefix_tokens - tokens
        return {"prefix_hit_share": (health.prefix_hits - hits) / num_tokens} if num_tokens > 0 else {}


def planner_of(env: RunEnv, seed: int) -> EnvPlanner:
    """Return the planner of an environment's groups."""
    return EnvPlanner(
        env.config.strategy,
        env.train_tasks,
        env.config.group.group_size,
        seed,
        env.probed,
        pool=env.pool_of_successes,
        criteria=env.config.criteria,
        at=partial(planning_at, env),
    )


def mixture_of(config: TrainConfig, state: MixtureState | None) -> Mixture:
    """Return the shares of a run's environments in its groups."""
    return Mixture(
        lambda step: [env.weight_at(step, config.num_steps) for env in config.envs],
        groups_per_step=config.groups_per_step,
        config=config.mixture,
        state=state,
    )


class Rollouts:
    """A run's rollouts: samples groups, and returns them one training step at a time.

    Args:
        state: the state of the stream of groups to resume from.
        plan: the state of the planner of groups to resume from.
        on_beat: called every second on the first rank, with the episodes in flight and the engine's load.
    """

    def __init__(
        self,
        run: Run,
        state: StreamState | None = None,
        plan: PlanState | None = None,
        on_beat: Callable[[Beat], None] = lambda beat: None,
    ) -> None:
        config, self._ranks, self._run_dir = run.config, run.ranks, run.run_dir
        self._rollouts_are_sharded, self._with_texts = run.rollouts_are_sharded, reads_texts(config)
        self._run, self._envs, self._groups_per_step = run, run.envs, config.groups_per_step
        self._agents: dict[tuple[int, SamplingParams], MakeAgent] = {}
        self._replays = any(env.config.strategy.replays for env in run.envs)
        self._mode = config.pipeline.mode
        self._num_parts = run.ranks.count if run.all_ranks_sample else 1
        """Number of ranks that sample."""
        part, parts = (run.ranks.rank if run.all_ranks_sample else 0), self._num_parts
        engine = run.engine if run.ranks.is_main or run.all_ranks_sample else None
        self._health = health_of(engine)
        self._prefix = PrefixHits()
        part_of_envs = replace(config.group, num_envs=run.num_episodes)
        self._in_flight = config.pipeline.in_flight(part_of_envs, self._health)
        if run.cluster is not None:
            run.cluster.lead(self._in_flight)
        self._pulse = Pulse(run.run_dir, self._in_flight, engine, on_beat)
        self._beats = run.ranks.is_main
        seed = derive_seed(config.seed, "rl tasks")
        self._planners = [planner_of(env, seed) for env in run.envs]
        self._judges = [run.judges.get(env.key) for env in run.envs]
        self._teachers = [run.teachers.get(env.key) for env in run.envs]
        self._players = [self._player_of(*pair) for pair in zip(run.envs, self._teachers, strict=True)]
        self._planner = GroupPlanner(partial(mixture_of, config), self._planners, config.groups_per_step, plan)
        self._stream = GroupStream(
            lambda ordinal: self._play(ordinal, self._planner.plan(ordinal)),
            groups_per_step=config.groups_per_step,
            max_staleness=config.pipeline.bound,
            num_groups=config.num_steps * config.groups_per_step,
            state=state,
            part=part,
            num_parts=parts,
        )

    def _player_of(self, env: RunEnv, teacher: HintTeacher | None) -> GroupPlayer:
        run, gives_feedback = self._run, env.config.strategy.gives_feedback
        return GroupPlayer(
            env.pool,
            run.make_agent(env),
            env.config.group,
            seed=run.config.seed,
            quorum=run.config.pipeline.quorum(env.config.group),
            in_flight=self._in_flight,
            on_episode=self._pulse.count,
            env_name=env.name,
            reflect=run.make_reflect(env),
            demonstrator=run.make_demonstrator(env),
            write_hint=None if teacher is None or gives_feedback else teacher.write,
            write_feedback=None if teacher is None or not gives_feedback else teacher.write,
        )

    @property
    def state(self) -> StreamState:
        """Return the state of the groups of all ranks, for a checkpoint."""
        return self._stream.state

    @property
    def plan(self) -> PlanState:
        """Return the state of the planner of groups, for a checkpoint."""
        return self._planner.state

    async def _play(self, ordinal: int, plan: GroupPlan) -> TrajectoryGroup:
        step = ordinal // self._groups_per_step
        env, judge = self._planners[plan.env], self._judges[plan.env]
        group = await self._players[plan.env].play(
            ordinal,
            env.task(plan.task),
            make_agent=self._agents_of(plan.env, step),
            roles=self._run.roles.cast(self._envs[plan.env], step),
            num_episodes=plan.num_episodes,
            max_turns=plan.max_turns,
            program=env.program(plan, ordinal, step),
        )
        return group if judge is None else await judge.graded(group)

    def _agents_of(self, env: int, step: int) -> MakeAgent:
        """Return the agents of an environment's groups that were planned for a step."""
        sampling = self._envs[env].at(step).sampling
        if (env, sampling) not in self._agents:
            self._agents[env, sampling] = self._run.make_agent(self._envs[env], sampling=sampling)
        return self._agents[env, sampling]

    async def take(self, step: int) -> Sequence[TrajectoryGroup]:
        """Wait for the groups of a step, and return them by ordinal. All ranks must call this, even without an engine.

        If episodes are spread over the ranks, the groups that other ranks played are outlines.

        Args:
            step: the RL step.
        """
        if self._beats:
            self._pulse.start()
        if self._mode != "async":  # no rollouts ran during the step before
            self._in_flight.begin_window()
        groups = await self._played(lambda: self._stream.take(step))
        self._stream.forget(group.ordinal for group in groups)
        if self._beats:
            self._pulse.beat("training")
        again = self._planner.observe(step, groups)
        return await self._with_earlier(groups, again) if self._replays else groups

    async def _with_earlier(self, groups: Sequence[TrajectoryGroup], again: Replayed) -> list[TrajectoryGroup]:
        """Add the episodes that are trained again, which the first rank reads; each is kept by one rank."""

        async def read() -> Stored:
            return read_again(groups, again, self._run_dir)

        ranks, stored = self._ranks, await self._ranks.from_main(read)
        made = swapped(groups, stored)
        if not self._rollouts_are_sharded:
            return made
        elsewhere = [at % ranks.count != ranks.rank for at in range(len(stored.groups))]
        elsewhere += [isinstance(group, GroupMetadata) for group in groups]
        return [
            outlined(group, with_texts=self._with_texts) if is_elsewhere else group
            for group, is_elsewhere in zip(made, elsewhere, strict=True)
        ]

    async def _played(self, play: Callable[[], Awaitable[Sequence[TrajectoryGroup]]]) -> list[TrajectoryGroup]:
        """Return the groups by ordinal that the ranks which sample return from ``play``, or their outlines."""
        mine: dict[int, TrajectoryGroup] = {}

        async def own() -> Sequence[TrajectoryGroup]:
            groups = await play()
            if not self._rollouts_are_sharded:
                return groups
            mine.update((group.ordinal, group) for group in groups)
            return [outlined(group, with_texts=self._with_texts) for group in groups]

        if self._num_parts > 1:
            shares = await self._ranks.from_all(own)
        else:
            shares = [await self._ranks.from_main(own)]
        groups = sorted((group for share in shares for group in share), key=lambda group: group.ordinal)
        return [mine.get(group.ordinal, group) for group in groups]

    def metrics(self, num_tokens: float, clock: Clock) -> Metrics:
        """Return the speed of a step that sampled ``num_tokens``, and the number of steps that rollouts are ahead."""
        playing_s = clock.seconds["time/rollout_s"] if self._mode == "sync" else sum(clock.seconds.values())
        return {
            "tokens_per_s": num_tokens / playing_s,
            "groups_ahead": float(self.state.next_ordinal - self.state.num_taken),
            "in_flight_limit": float(self._in_flight.limit),
            **self._prefix.since_last(self._health()),
            **self._planner.metrics(),
            **{
                f"{env.prefix}{name}": value
                for env, *asked in zip(self._envs, self._judges, self._teachers, strict=True)
                for model in asked
                if model is not None
                for name, value in model.take_metrics().items()
            },
        }

    @property
    def teacher_fault(self) -> str:
        """Return a sentence about turns without a hint because a teacher failed; empty if there are none."""
        faults = [teacher.last_fault for teacher in self._teachers if teacher is not None and teacher.last_fault]
        if not faults:
            return ""
        return f"the teacher failed, and turns go without its hints (teacher/num_failed); at last: {faults[-1]}"

    async def close(self) -> None:
        """Cancel the episodes in flight."""
        await self._pulse.stop()
        await self._stream.close()


def reads_texts(config: TrainConfig) -> bool:
    """Return True if the credit of an environment compares texts."""
    return any(not TEXT_COLUMNS.isdisjoint(env.credit.columns()) for env in config.by_env.values())
