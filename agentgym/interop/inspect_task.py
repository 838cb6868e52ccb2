"""agentgym's environments as a task of inspect_ai: ``inspect eval agentgym/agentgym -T env_id=ID`` (extra ``inspect``).

inspect samples from the model, and agentgym's environment answers. One assistant message is one turn, with any number
of calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym.errors import MissingExtraError, UsageError
from agentgym.interop.chat import rows_of
from agentgym.interop.inspect_log import chat_messages_of
from agentgym.interop.outside import OutsideEpisode
from agentgym.json_schema.reading import inlined
from agentgym.registry import make
from agentgym.types import Call, MalformedCall, Message, ToolCall, ToolSpec

try:
    import anyio
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageAssistant, get_model
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolInfo, ToolParams
except ImportError as error:
    raise MissingExtraError("a task of inspect_ai", "inspect") from error

_RESULT = "agentgym"
"""Key of an episode's result in the sample's store."""
_IN_CHECKOUT = __name__ == "agentgym.interop.inspect_task" and "site-packages" not in __file__
_NAME = "agentgym/agentgym" if _IN_CHECKOUT else "agentgym"
"""Name of the task. Inspect puts the package before it, but not in a checkout whose name for pip is another."""


@task(name=_NAME)  # type: ignore[untyped-decorator]
def agentgym(env_id: str = "", split: str = "test", num_tasks: int = 100, **kwargs: Any) -> Task:
    """Return a task of inspect in which its model acts in an environment, scored by success and reward.

    If the environment fails, the sample has an error and no score. By default, the evaluation stops when half of the
    samples have failed; ``--fail-on-error`` changes that.

    Args:
        env_id: a registered id, ``module:Id`` or ``file.py:Id``.
        split: ``train``, ``valid`` or ``test``.
        num_tasks: number of tasks from the start of the split.
        kwargs: arguments of the environment.

    Raises:
        UsageError: no environment is named, there is no such environment or split, or it has no tasks.
    """
    if not env_id:
        raise UsageError("name an environment, as in -T env_id=agentgym/Household-v0; `agentgym list` shows them")
    env = make(env_id, **kwargs)
    try:
        tasks = env.tasks(split)
        ids = [tasks[index].id for index in range(min(num_tasks, len(tasks)))]
    finally:
        env.close()
    if not ids:
        raise UsageError(f"{env_id} has no tasks in split {split!r}")
    samples = [
        Sample(input=f"{env_id}, task {name}", id=name, metadata={"split": split, "index": index})
        for index, name in enumerate(ids)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=f"{env_id}, {split}"),
        solver=play(env_id, kwargs),
        scorer=success_and_reward(),
        fail_on_error=0.5,
        version=env_id.rpartition("-v")[2] or 0,
    )


@solver  # type: ignore[untyped-decorator]
def play(env_id: str, kwargs: Mapping[str, Any]) -> Solver:
    """Return a solver that runs the sample's episode. The conversation consists of observations and actions."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = OutsideEpisode(env_id, kwargs)
        try:
            said = await episode.begin(state.metadata["split"], state.metadata["index"])
            state.messages = chat_messages_of(rows_of(said))
            while not episode.is_over:
                tools = [_tool(spec) for spec in episode.env.tools]
                state.output = await get_model().generate(state.messages, tools)
                reply = state.output.message
                state.messages.append(reply)
                said = await episode.step(_action(reply))
                state.messages += chat_messages_of(rows_of(said, [call.id for call in reply.tool_calls or ()]))
                state.store.set(_RESULT, _result(episode))
            state.completed = True
            return state
        finally:
            with anyio.CancelScope(shield=True):
                await episode.close()

    return solve


@scorer(metrics={"success": [mean(), stderr()], "reward": [mean(), stderr()]})  # type: ignore[untyped-decorator]
def success_and_reward() -> Scorer:
    """Return a scorer with the episode's success and return as values and the named reward parts as metadata."""

    async def score(state: TaskState, target: Target) -> Score:
        result = state.store.get(_RESULT) or {"success": 0.0, "reward": 0.0, "parts": {}, "num_turns": 0}
        value = {name: result[name] for name in ("success", "reward")}
        return Score(value=value, metadata={"parts": result["parts"], "num_turns": result["num_turns"]})

    return score


def _result(episode: OutsideEpisode) -> dict[str, Any]:
    return {
        "success": float(episode.success),
        "reward": episode.episode_return,
        "parts": dict(episode.parts),
        "num_turns": episode.num_turns,
    }


def _action(reply: ChatMessageAssistant) -> Message:
    calls = [_call(call) for call in reply.tool_calls or ()]
    return Message("assistant", reply.text, tuple(calls), answer=reply.text)


def _call(call: Any) -> Call:
    if call.parse_error:
        return MalformedCall((0, 0), call.parse_error, call.function)
    return ToolCall(call.function, call.arguments, call.id)


def _tool(spec: ToolSpec) -> ToolInfo:
    given = inlined(spec.parameters, spec.parameters)  # inspect's schemas do not support references
    return ToolInfo(name=spec.name, description=spec.description, parameters=ToolParams.model_validate(given))
