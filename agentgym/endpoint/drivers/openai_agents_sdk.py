"""Runs an agent of the OpenAI Agents SDK, which calls the environment's tools over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, DefaultAsyncHttpxClient


def tool_of(spec: dict[str, Any], url: str) -> Any:
    """Return a tool of agentgym's environment as a tool of the SDK."""

    async def invoke(_: Any, arguments: str) -> str:
        async with DefaultAsyncHttpxClient(trust_env=False, timeout=None) as client:
            answer = await client.post(f"{url}/{spec['name']}", content=arguments or "{}")
            return str(answer.raise_for_status().json()["content"])

    return FunctionTool(spec["name"], spec["description"], spec["parameters"], invoke, strict_json_schema=False)


async def run(settings: dict[str, Any]) -> None:
    """Run the agent to its final answer or its last step. Calls that it cannot read end it, as the policy's fault."""
    set_tracing_disabled(True)
    http = DefaultAsyncHttpxClient(trust_env=False, timeout=None)
    client = AsyncOpenAI(
        base_url=settings["base_url"], api_key=settings["api_key"], max_retries=0, http_client=http
    )  # fmt: skip
    make = OpenAIResponsesModel if settings["api"] == "responses" else OpenAIChatCompletionsModel
    agent = Agent(
        name="agent",
        model=make(settings["model"], openai_client=client),
        model_settings=ModelSettings(),
        tools=[tool_of(spec, settings["tools_url"]) for spec in settings["tools"]],
    )
    try:
        await Runner.run(agent, settings["task"], max_turns=settings["step_limit"])
    except (MaxTurnsExceeded, ModelBehaviorError):
        return


def play(path: str) -> None:
    """Play one episode with the settings in a JSON file: task, api, step_limit, tools, tools_url, base_url, api_key
    and model."""
    asyncio.run(run(json.loads(Path(path).read_text(encoding="utf-8"))))
