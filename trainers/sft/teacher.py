"""Demonstrations of a model behind an OpenAI-compatible endpoint: it plays the training tasks."""

from __future__ import annotations

from dataclasses import replace

from agentgym.engine import SamplingParams
from agentgym.rollout.group import run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import GroupRecord, read_records, write_records
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.config.sft import ENDPOINT
from agentgym.trainers.engines.openai.endpoint import parse_endpoint
from agentgym.trainers.engines.openai.http import OpenAIClient, endpoint_agents
from agentgym.trainers.reporting.metrics import Log
from agentgym.trainers.run import Run
from agentgym.trainers.run_env import RunEnv, demo_tasks, named
from agentgym.trainers.sft.recorded import Recorded


async def play_teacher(run: Run, env: RunEnv, count: int, log: Log) -> Recorded:
    """Return the teacher's episodes of ``count`` tasks of an environment.

    They are kept in ``demos/teacher.jsonl.gz`` of the run's folder (in a mixture ``demos/teacher-NAME.jsonl.gz``), so
    that a resumed run learns from the same ones.

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
        return Recorded(name, tuple(trajectory for group in groups for trajectory in group.trajectories))
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
    return Recorded(name, tuple(trajectory for group in groups for trajectory in group.trajectories))
