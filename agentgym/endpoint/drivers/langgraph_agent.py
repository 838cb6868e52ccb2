"""Runs LangChain's agent on LangGraph, which calls the environment's tools over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError


def tool_of(spec: dict[str, Any], url: str) -> Any:
    """Return a tool of agentgym's environment as a tool of LangChain."""

    def invoke(**arguments: Any) -> str:
        with httpx.Client(trust_env=False, timeout=None) as client:
            answer = client.post(f"{url}/{spec['name']}", json=arguments)
            return str(answer.raise_for_status().json()["content"])

    return StructuredTool.from_function(
        invoke, name=spec["name"], description=spec["description"] or spec["name"], args_schema=spec["parameters"]
    )


def run(settings: dict[str, Any]) -> None:
    """Run the agent to its final answer or its last step."""
    model = ChatOpenAI(
        model=settings["model"], base_url=settings["base_url"], api_key=settings["api_key"], max_retries=0
    )  # fmt: skip
    agent = create_agent(model, [tool_of(spec, settings["tools_url"]) for spec in settings["tools"]])
    try:
        # a step of the agent is one of the model and one of its tools
        agent.invoke({"messages": [("user", settings["task"])]}, {"recursion_limit": 2 * settings["step_limit"]})
    except GraphRecursionError:
        return


def play(path: str) -> None:
    """Play one episode with the settings in a JSON file: task, step_limit, tools, tools_url, base_url, api_key and
    model."""
    run(json.loads(Path(path).read_text(encoding="utf-8")))
