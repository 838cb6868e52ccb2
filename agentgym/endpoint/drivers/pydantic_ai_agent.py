"""Runs an agent of pydantic-ai, which calls the environment's tools over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def tool_of(spec: dict[str, Any], url: str) -> Any:
    """Return a tool of agentgym's environment as a tool of pydantic-ai."""

    async def invoke(**arguments: Any) -> str:
        async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
            answer = await client.post(f"{url}/{spec['name']}", json=arguments)
            return str(answer.raise_for_status().json()["content"])

    return Tool.from_schema(
        invoke, name=spec["name"], description=spec["description"], json_schema=spec["parameters"], sequential=True
    )


def run(settings: dict[str, Any]) -> None:
    """Run the agent to its final answer or its last step. Answers that it gives up on are the policy's fault."""
    client = AsyncOpenAI(base_url=settings["base_url"], api_key=settings["api_key"], max_retries=0)
    model = OpenAIChatModel(settings["model"], provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, tools=[tool_of(spec, settings["tools_url"]) for spec in settings["tools"]])
    try:
        agent.run_sync(settings["task"], usage_limits=UsageLimits(request_limit=settings["step_limit"]))
    except (UsageLimitExceeded, UnexpectedModelBehavior):
        return


def play(path: str) -> None:
    """Play one episode with the settings in a JSON file: task, step_limit, tools, tools_url, base_url, api_key and
    model."""
    run(json.loads(Path(path).read_text(encoding="utf-8")))
