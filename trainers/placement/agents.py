"""Agents of a policy that is not trained, opened by its name: a script, a model folder, an endpoint, a vLLM server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agentgym.endpoint.harness import HarnessConfig
from agentgym.engine import ENDPOINT, SamplingParams
from agentgym.errors import UsageError
from agentgym.evals.config import EvalConfig
from agentgym.evals.policies import is_scripted, named_policy
from agentgym.rollout.context import FULL
from agentgym.trainers.engines.vllm.address import SERVED

if TYPE_CHECKING:
    from agentgym.rollout.agent import MakeAgent
    from agentgym.trainers.placement.policy import MakeEngine


async def open_policy_agents(
    policy: str,
    config: EvalConfig,
    num_slots: int,
    say: Callable[[str], None],
    make_engine: MakeEngine | None = None,
) -> tuple[MakeAgent, Callable[[], Awaitable[None]]]:
    """Return a maker of agents of a policy that makes one attempt, and a coroutine function that frees its resources.

    Args:
        config: the sampling and rendering of a model.
        num_slots: number of episodes that run at the same time.
        say: receives remarks about the model, one line each.
        make_engine: makes the engine of a model folder; None for the embedded one.

    Raises:
        UsageError: the model cannot be loaded, or its context is too small.
        ConfigError: the settings do not fit the vLLM server.
        EngineError: no vLLM server answers.
    """

    async def nothing() -> None:
        pass

    if is_scripted(policy):
        return named_policy(policy), nothing
    sampling = SamplingParams(
        temperature=config.temperature,
        max_new_tokens=config.max_new_tokens,
        max_thinking_tokens=config.max_thinking_tokens,
    )
    if policy.startswith(ENDPOINT):
        from agentgym.trainers.engines.openai.endpoint import parse_endpoint
        from agentgym.trainers.engines.openai.http import OpenAIClient, endpoint_agents

        client = OpenAIClient(parse_endpoint(policy.removeprefix(ENDPOINT)), num_slots, say=say)
        try:
            await client.check()
        except UsageError:
            await client.close()
            raise
        return endpoint_agents(client, sampling, FULL.changed(config.context).examples), client.close
    from agentgym.trainers.placement.policy import open_policy

    changes: dict[str, Any] = {
        "max_context_tokens": config.max_context_tokens,
        "chat": config.chat,
        "context": config.context,
    }
    if policy.startswith(SERVED):
        from agentgym.trainers.engines.vllm.address import parse_served
        from agentgym.trainers.placement.served import open_served

        opened = await open_served(parse_served(policy.removeprefix(SERVED)), **changes, say=say)
    else:
        opened = open_policy(policy, num_slots=num_slots, **changes, say=say, make_engine=make_engine)
        if make_engine is not None:
            await opened.engine.update_weights(0)
    for note in opened.renderer.notes:
        say(f"note: {note}")
    if not config.harness.get("name"):
        return opened.agents(sampling), opened.engine.close
    agents = opened.agents(sampling, HarnessConfig.of(config.harness))

    async def close() -> None:
        await agents.close()  # type: ignore[attr-defined]
        await opened.engine.close()

    return agents, close
