"""agentgym's environments with verifiers' interfaces: a taskset and a harness that runs it (extra ``verifiers``).

``vf-eval agentgym_verifiers --env.taskset.env-id ID`` finds both in the module ``agentgym_verifiers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import Field

from agentgym.errors import InfrastructureError, MissingExtraError, error_text
from agentgym.interop.chat import rows_of
from agentgym.interop.outside import OutsideEpisode
from agentgym.registry import make

try:
    import verifiers.v1 as vf
    from openai import AsyncOpenAI
except ImportError as error:
    raise MissingExtraError("an environment of verifiers", "verifiers") from error

PLUGIN: Final = "agentgym_verifiers"
"""Module in which verifiers finds the taskset and the harness."""


class AgentgymData(vf.TaskData):  # type: ignore[misc]
    """A reference to a task: environment, split and index."""

    env_id: str
    env_kwargs: dict[str, Any]
    split: str
    task_index: int


class AgentgymState(vf.State):  # type: ignore[misc]
    """Rewards of an episode so far."""

    parts: dict[str, float] = Field(default_factory=dict)
    """Sum of each named reward part over the turns."""
    episode_return: float = 0.0
    success: bool = False
    num_turns: int = 0


class AgentgymTask(vf.Task[AgentgymData, AgentgymState]):  # type: ignore[misc]
    """A task whose reward is the episode's return and whose metrics are the named reward parts."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def episode_return(self, trace: vf.Trace) -> float:
        """Return the sum of the turns' rewards."""
        return float(trace.state.episode_return)

    @vf.metric  # type: ignore[untyped-decorator]
    async def reward_parts(self, trace: vf.Trace) -> dict[str, float]:
        """Return success, number of turns, and the sum of each named reward part."""
        state = trace.state
        parts = {f"reward_{name}": value for name, value in state.parts.items()}
        return {"success": float(state.success), "num_env_turns": float(state.num_turns), **parts}


class AgentgymTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """The environment and the tasks to run."""

    env_id: str = "agentgym/Household-v0"
    """A registered id, ``module:Id`` or ``file.py:Id``."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""
    split: str = "train"


class AgentgymTaskset(vf.Taskset[AgentgymTask, AgentgymTasksetConfig]):  # type: ignore[misc]
    """The tasks of one split of an environment, in order."""

    def load(self) -> Iterator[AgentgymTask]:
        """Yield the tasks. There may be a million, so limit the iteration with ``take``."""
        config = self.config
        env = make(config.env_id, **config.env_kwargs)
        try:
            tasks = env.tasks(config.split)
        finally:
            env.close()
        for index in range(len(tasks)):
            given = {"env_id": config.env_id, "env_kwargs": config.env_kwargs}
            data = AgentgymData(name=tasks[index].id, prompt="", split=config.split, task_index=index, **given)
            yield AgentgymTask(data, config.task)


class AgentgymHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """A harness that runs an episode in this process. Every model call goes through verifiers' interception.

    One assistant message is one turn of the environment, with any number of calls. A failure of the environment raises
    ``vf.EnvError``; the trace then has this error and no reward.
    """

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: AgentgymData,
    ) -> vf.ProgramResult:
        """Run the task's episode to its end."""
        episode = OutsideEpisode(data.env_id, data.env_kwargs)
        try:
            async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None) as client:
                await _play(episode, client, ctx.model, trace, data)
        except InfrastructureError as error:
            raise vf.EnvError(f"{data.env_id}: {error_text(error)}") from error
        finally:
            await episode.close()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _play(episode: OutsideEpisode, client: AsyncOpenAI, model: str, trace: vf.Trace, data: AgentgymData) -> None:
    messages: list[Any] = rows_of(await episode.begin(data.split, data.task_index))
    while not episode.is_over:
        specs = episode.env.tools
        tools: Any = {"tools": [spec.as_function() for spec in specs]} if specs else {}
        completion = await client.chat.completions.create(model=model, messages=messages, **tools)
        reply = completion.choices[0].message.model_dump(exclude_none=True)
        said = await episode.step(reply)
        messages += [reply, *rows_of(said, [call["id"] for call in reply.get("tool_calls") or ()])]
        state: AgentgymState = trace.state
        state.parts, state.episode_return = dict(episode.parts), episode.episode_return
        state.success, state.num_turns = episode.success, episode.num_turns


def load_environment(env_id: str, *, split: str = "train", **kwargs: Any) -> vf.Env:
    """Return an environment of verifiers that wraps an agentgym environment, for ``Env.run_episode`` and ``vf-eval``.

    Args:
        env_id: a registered id, ``module:Id`` or ``file.py:Id``.
        split: split whose tasks form the taskset.
        kwargs: arguments of the environment.

    Raises:
        UsageError: there is no such environment, or its arguments are wrong.
    """
    make(env_id, **kwargs).close()
    taskset = AgentgymTasksetConfig(id=PLUGIN, env_id=env_id, env_kwargs=kwargs, split=split)
    return vf.load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent={"runtime": {"type": "subprocess"}}))
