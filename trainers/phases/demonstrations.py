"""The demonstrations of a run: training rows from every source in ``sft.*``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from agentgym.engine import ENDPOINT, SamplingParams
from agentgym.env.env import Env
from agentgym.env.live import LIVE_DEMOS
from agentgym.errors import EnvError, UsageError, boundary
from agentgym.rollout.group import run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import GroupRecord, read_json_object, read_records, replace_text, write_records
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.demos import collect_demos, has_oracle
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.weighted_row import is_taught
from agentgym.trainers.engines.openai.endpoint import parse_endpoint
from agentgym.trainers.engines.openai.http import OpenAIClient, endpoint_agents
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run.env import RunEnv, demo_tasks, named
from agentgym.trainers.run.run import Run
from agentgym.trainers.sft.conversation import Conversation
from agentgym.trainers.sft.files import read_files
from agentgym.trainers.sft.oracle import NUM_REPLAYED, oracle_note
from agentgym.trainers.sft.recorded import RecordedSource, as_conversation, chosen, of_policy, read_run
from agentgym.trainers.sft.rows import digest_of, sft_rows
from agentgym.trainers.sft.schema import fillers_note, misfits_note, strangers_note
from agentgym.trainers.sft.write import Writer
from agentgym.trainers.trl.versions import check_trl
from agentgym.types import Task, ToolSpec, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDemos:
    """Demonstrations that exist before the run begins: files and recorded runs."""

    conversations: tuple[Conversation, ...] = ()
    runs: tuple[RecordedSource, ...] = ()


def read_given(config: SftConfig) -> LoadedDemos:
    """Read all files and recorded runs, so that their errors are reported before a model is loaded.

    Raises:
        UsageError: a source is invalid; the message names the file and line, the folder, or the teacher's address.
        MissingExtraError: a file is Parquet and pyarrow is missing, or ``sft.trainer=trl`` and TRL is missing.
    """
    if config.trainer == "trl":
        check_trl("sft.trainer=trl")
    if config.teacher:
        parse_endpoint(config.teacher.removeprefix(ENDPOINT))
    return LoadedDemos(
        conversations=tuple(read_files(config.files)),
        runs=tuple(read_run(path) for path in config.runs),
    )


async def collect_rows(run: Run, given: LoadedDemos, log: Log) -> list[Row]:
    """Return the training rows of all sources, in the order of files, runs, and teacher or oracle.

    Raises:
        UsageError: a source has no usable demonstration, or the demonstrations of a resumed run have changed.
    """
    config = run.config
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(Sources(run, env, log))) for env in run.envs]
        demos = await sources[0].of_files(given.conversations) if given.conversations else []
        for recorded in given.runs:
            for source, own in _by_env(sources, recorded):
                demos += await source.of_episodes(own)
        for source, count in zip(sources, num_demos(config), strict=True):
            if count and config.sft.teacher:
                demos += await source.of_episodes(await play_teacher(run, source.env, count, log))
            elif count:
                demos += await source.of_oracle(count)
    every = sft_rows(demos, config.sft, run.renderer)
    if len(every) > len(demos):
        log.say(
            f"note: {len(demos):,} demonstrations make {len(every):,} rows, one for each context window "
            f"(context.policy={config.context.policy}); sft.num_demos and sft.num_epochs lower the number of steps"
        )
    rows = [row for row in every if is_taught(row)]
    if len(rows) < len(every):
        log.say(
            f"note: demonstrations: {len(every) - len(rows)} of {len(every)} rows are left out, since none of their "
            f"tokens has a weight ({_weights_of(config.sft)})"
        )
    if config.sft.files or config.sft.runs or config.sft.teacher:
        for loss in dict.fromkeys(loss for source in sources for loss in source.writer.losses()):
            log.say(f"note: demonstrations: {loss}")
        _check_same(run, rows)
    _check_enough(config.sft, rows)
    return rows


def _weights_of(config: SftConfig) -> str:
    """Return the settings that give tokens their weights, for a note."""
    roles = ", ".join(config.loss_roles)
    return (
        f"sft.loss_roles={roles or 'none'}, sft.noise_weight={config.noise_weight:g}, "
        f"sft.observation_weight={config.observation_weight:g}"
    )


def num_demos(config: TrainConfig) -> list[int]:
    """Return the number of demonstrations to play in each environment.

    In a mixture, ``sft.num_demos`` is divided in proportion to the environments' largest weights; environments that
    set their own number are excepted.
    """
    weights = [max(env.weight, env.final_weight or 0.0) for env in config.envs]
    shares = [round(config.sft.num_demos * weight / sum(weights)) for weight in weights]
    return [env.sft.get("num_demos", share) for env, share in zip(config.envs, shares, strict=True)]


def _by_env(sources: Sequence[Sources], recorded: RecordedSource) -> list[tuple[Sources, RecordedSource]]:
    """Assign the episodes of a recorded run to environments; in a run on one environment all belong to it."""
    if len(sources) == 1:
        return [(sources[0], recorded)]
    known = {source.env_id: source for source in reversed(sources)}  # the first of several of one id
    if strangers := {episode.env_id for episode in recorded.trajectories if episode.env_id} - set(known):
        raise UsageError(
            f"{recorded.name} has episodes of {', '.join(sorted(strangers))}, and the run trains on "
            f"{', '.join(sorted(known))}: add it to envs, or choose another folder"
        )
    shares = [
        (source, tuple(episode for episode in recorded.trajectories if episode.env_id == env_id))
        for env_id, source in known.items()
    ]
    return [(source, RecordedSource(recorded.name, episodes)) for source, episodes in shares if episodes]


class Sources:
    """A converter of the demonstrations for one environment into episodes with token ids.

    Args:
        log: receives a message about each source: how many demonstrations are used and how many left out.
    """

    def __init__(self, run: Run, env: RunEnv, log: Log) -> None:
        self._run, self._log, self.env, config = run, log, env, env.config
        self._probed: Env | None = None
        self._tools: dict[str, tuple[ToolSpec, ...]] = {}
        self.writer = Writer(
            renderer=run.renderer.for_words(self._probe().takes_words),
            context=config.context,
            max_context_tokens=config.model.max_context_tokens,
            max_new_tokens=config.sampling.max_new_tokens,
            max_turns=self._probe().max_turns if config.context.turns_left else None,
        )

    async def of_files(self, conversations: tuple[Conversation, ...]) -> list[Trajectory]:
        """Convert conversations into the model's tokens.

        Raises:
            UsageError: the model's format cannot represent a conversation, or all are too long.
        """
        written = [await self.writer.write(conversation) for conversation in conversations]
        demos = [demo for demo in written if demo is not None]
        counts = f"{len(conversations)} conversations, {len(demos)} used"
        self._say("sft.files", counts, len(written) - len(demos), demos, "conversation")
        if note := fillers_note(conversations):
            self._log.say(note)
        env, tasks = self._probe(), self.env.train_tasks
        tools = await _tools_in(env, tasks[0]) if tasks else ()
        for note in filter(None, (misfits_note(conversations), strangers_note(conversations, tools, env.env_id))):
            self._log.say(note)
        return demos

    async def of_episodes(self, recorded: RecordedSource) -> list[Trajectory]:
        """Choose episodes by ``sft.keep``; use their recorded token ids if they fit the model, else render them again.

        Raises:
            UsageError: the episodes belong to another environment, none is left, or the model's format cannot represent
                one.
        """
        valid = [trajectory for trajectory in recorded.trajectories if trajectory.status.is_evidence]
        split = self.env.config.eval.split
        open_to_all = [trajectory for trajectory in valid if trajectory.task.split != split or split == "train"]
        selected = chosen(open_to_all, self.env.config.sft.keep)
        others = self._run.roles.beside_demonstrations(self.env)
        kept = [own for one in selected if (own := of_policy(one, self._probe(), others)) is not None]
        demos: list[Trajectory] = []
        num_as_recorded = num_malformed = num_long = 0
        for trajectory in kept:
            tools = await self._tools_of(trajectory, recorded.name)
            if self.writer.holds(trajectory, tools):
                demos.append(trajectory)
                num_as_recorded += 1
                continue
            conversation = as_conversation(trajectory, tools)
            demo = None if conversation is None else await self.writer.write(conversation)
            num_malformed += conversation is None
            num_long += conversation is not None and demo is None
            demos += [] if demo is None else [demo]
        counts = (
            f"{len(recorded.trajectories)} episodes, {len(recorded.trajectories) - len(valid)} failed, "
            f"{sum(bool(trajectory.success) for trajectory in valid)} succeeded, {len(kept)} kept "
            f"(sft.keep={self.env.config.sft.keep}), {num_as_recorded} with their recorded token ids, "
            f"{len(demos) - num_as_recorded} rendered again"
        )
        if len(open_to_all) < len(valid):
            counts += f"; {len(valid) - len(open_to_all)} left out as tasks of the split {split!r} (eval.split)"
        if len(kept) < len(selected):
            counts += f"; {len(selected) - len(kept)} left out as those of players that roles play"
        if num_malformed:
            counts += f"; {num_malformed} left out for malformed calls, which another format cannot write"
        self._say(recorded.name, counts, num_long, demos, "episode")
        return demos

    async def of_oracle(self, count: int) -> list[Trajectory]:
        """Play the environment's oracle, or random calls if it has no oracle and the configuration allows that.

        Args:
            count: number of training tasks to play.

        Raises:
            UsageError: the environment has no oracle, and the configuration does not allow random calls.
        """
        self._log.begin("demos", count)
        tasks = demo_tasks(self.env, count)
        noise = await self._noise(tasks[0][1])
        if noise == 1 and self.env.service and len(tasks) > LIVE_DEMOS:
            self._log.say(
                f"note: {self.env_id} asks {self.env.service}, so {LIVE_DEMOS} episodes of random calls are played in "
                f"place of {len(tasks):,} (sft.num_demos); is_live = False in its class plays all"
            )
            tasks = tasks[:LIVE_DEMOS]
        demos = await self._played(tasks, noise)
        share = sum(bool(demo.success) for demo in demos) / max(1, len(demos))
        segments = [segment for demo in demos for segment in demo.segments]
        num_tokens = sum(len(segment.token_ids) for segment in segments) / max(1, len(segments))
        of = f" of {self.env.name}" if self.env.name else ""
        missing = f" ({len(tasks) - len(demos)} more failed)" if len(demos) < len(tasks) else ""
        how = f"by the oracle, {noise:.0%} of actions at random (sft.noise)" if 0 < noise < 1 else "by the oracle"
        how = "by random calls" if noise == 1 else how
        said = f"{len(demos)} demonstrations{of}{missing} {how}: {share:.0%} successful, {num_tokens:.0f} tokens each"
        self._log.say(said)
        if demos and noise < 1:
            await self._check_oracle(tasks, demos, share, noise)
        return list(demos)

    async def _played(self, tasks: Sequence[tuple[int, Task]], noise: float) -> Sequence[Trajectory]:
        config = self.env.config
        return await collect_demos(
            tasks,
            self.env.pool,
            self._run.renderer,
            noise=noise,
            max_context_tokens=config.model.max_context_tokens,
            max_new_tokens=config.sampling.max_new_tokens,
            context=config.context,
            group=config.group,
            seed=config.seed,
            others=self._run.roles.beside_demonstrations(self.env),
            on_episode=lambda demo: self._log.add_episode("demos", demo),
        )

    async def _check_oracle(
        self, tasks: Sequence[tuple[int, Task]], demos: Sequence[Trajectory], share: float, noise: float
    ) -> None:
        """Check that the oracle solves its own tasks in the model's tokens, where its actions alone decide that.

        If noise made every demonstration fail, the first tasks are played again without it.

        Raises:
            UsageError: it fails most of them without noise; the message says how the episodes ended.
        """
        if (noise and share) or self.env.config.judge.is_on:  # a judge grades what the environment may not
            return
        if noise:
            demos = await self._played(tasks[:NUM_REPLAYED], 0.0)
            share = sum(bool(demo.success) for demo in demos) / max(1, len(demos))
            if share:
                self._log.say(f"note: no demonstration succeeded with sft.noise={noise:g}, and {share:.0%} do without")
                return
        if note := oracle_note(self._probe(), demos, share, self.env.config.model.max_context_tokens):
            self._log.say(f"note: {note}")

    async def _noise(self, task: Task) -> float:
        """Return the share of random actions, which is 1 if the environment has no oracle."""
        config, env = self.env.config.sft, self._probe()
        if config.noise == 1:
            return 1.0
        await _tools_in(env, task)
        if has_oracle(env):
            return config.noise
        if config.without_oracle == "refuse":
            raise UsageError(
                f"{env.env_id} has no oracle to play sft.num_demos={config.num_demos} demonstrations: write oracle(), "
                "set sft.without_oracle=random for random calls, which teach the form of actions alone, or name "
                "sft.files, sft.runs or sft.teacher"
            )
        self._log.say(f"note: {env.env_id} has no oracle; the demonstrations are random calls, which teach form alone")
        return 1.0

    def close(self) -> None:
        """Close the environment that was opened to read its tools."""
        if self._probed is not None:
            self._probed.close()

    @property
    def env_id(self) -> str:
        """The environment's registered id, which recorded episodes contain."""
        return self._probe().env_id

    def _probe(self) -> Env:
        self._probed = self._probed or self.env.make_env()
        return self._probed

    async def _tools_of(self, trajectory: Trajectory, name: str) -> tuple[ToolSpec, ...]:
        """Return the tools of an episode's task. They may depend on the task, and a record does not contain them."""
        env, task = self._probe(), trajectory.task
        if trajectory.env_id != env.env_id:
            raise UsageError(
                f"{name} has episodes of {trajectory.env_id}, and the run trains on {env.env_id}: set env.id to that, "
                "or choose another folder"
            )
        if task.content_hash not in self._tools:
            self._tools[task.content_hash] = await _tools_in(env, task)
        return self._tools[task.content_hash]

    def _say(self, name: str, counts: str, num_long: int, demos: list[Trajectory], what: str) -> None:
        """Log the counts of a source.

        Raises:
            UsageError: no demonstration is left.
        """
        limit = self.env.config.model.max_context_tokens
        counts += f"; {num_long} left out as longer than model.max_context_tokens={limit}" if num_long else ""
        if not demos:
            raise UsageError(
                f"{name}: no {what} is left to learn from: {counts}; choose others by sft.*, or make room for them"
            )
        self._log.say(f"{name}: {counts}")


async def _tools_in(env: Env, task: Task) -> tuple[ToolSpec, ...]:
    with boundary(EnvError, f"{env.env_id} reset"):
        await env.areset(seed=task.seed, options={"task": task})
    return tuple(env.tools)


def _check_same(run: Run, rows: list[Row]) -> None:
    """Check that a resumed run's demonstrations have not changed, so that it ends as it would have without the stop."""
    path = run.run_dir / "demos" / "rows.json"
    now = {"num_rows": len(rows), "digest": digest_of(rows)}
    before = read_json_object(path)
    if before and before != now:
        raise UsageError(
            f"the demonstrations of {run.run_dir} have changed since it began ({before['num_rows']} rows then, "
            f"{len(rows)} now): bring the files and folders of sft.* back, or begin a new run"
        )
    replace_text(path, json.dumps(now) + "\n")


def _check_enough(config: SftConfig, rows: list[Row]) -> None:
    needed = {"sft.mix.batch_size": config.mix.batch_size} if config.mix.weight else {}
    if config.has_phase and (config.files or config.runs or config.teacher):
        needed["sft.batch_size"] = config.batch_size
    for name, size in needed.items():
        if len(rows) < size:
            raise UsageError(f"the demonstrations make {len(rows)} rows, fewer than {name}={size}: lower {name}")


# ----------------------------------------- demonstrations by a teacher, a model behind an OpenAI-compatible endpoint


async def play_teacher(run: Run, env: RunEnv, count: int, log: Log) -> RecordedSource:
    """Return the teacher's episodes of ``count`` tasks of an environment.

    They are stored in the run's folder, in ``demos/teacher.jsonl.gz`` (in a mixture ``demos/teacher-NAME.jsonl.gz``),
    so that a resumed run uses the same episodes.

    Raises:
        UsageError: the endpoint cannot be reached, or refuses the key or the model's name.
        RunStoppedError: too many episodes failed.
    """
    config = env.config
    endpoint = parse_endpoint(config.sft.teacher.removeprefix(ENDPOINT))
    path = run.run_dir / "demos" / f"{named('teacher', env.name)}.jsonl.gz"
    name = f"sft.teacher: {endpoint.url}"
    if path.is_file():
        groups = tuple(record.group for record in read_records(path))
        return RecordedSource(name, tuple(trajectory for group in groups for trajectory in group.trajectories))
    sampling = SamplingParams(max_new_tokens=config.sft.teacher_max_new_tokens, temperature=config.sampling.temperature)
    pool = EnvPool(env.make_env, config.group.num_envs)
    client = OpenAIClient(endpoint, config.group.num_envs)
    log.begin("demos", count * config.sft.episodes_per_task)
    try:
        await client.check()
        groups = await run_groups(
            demo_tasks(env, count),
            pool,
            endpoint_agents(client, sampling),
            replace(config.group, group_size=config.sft.episodes_per_task, min_valid=1),
            seed=derive_seed(config.seed, "teacher"),
            on_episode=lambda request, trajectory: log.add_episode("demos", trajectory),
        )
    finally:
        await client.close()
        await pool.close()
    write_records(path, [GroupRecord(group=group) for group in groups])
    return RecordedSource(name, tuple(trajectory for group in groups for trajectory in group.trajectories))
