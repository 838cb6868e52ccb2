"""Runs an agent of smolagents, which calls the environment's tools over HTTP."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from smolagents import CodeAgent, LogLevel, OpenAIModel, Tool, ToolCallingAgent


class EnvTool(Tool):  # type: ignore[misc]
    """A tool of agentgym's environment as a tool of smolagents."""

    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(self, spec: dict[str, Any], url: str) -> None:
        self.name, self.description, self.inputs = spec["name"], spec["description"], spec["inputs"]
        self._url = f"{url}/{self.name}"
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> str:
        """Step the environment with a call and return the text of its answer."""
        given = {**dict(zip(self.inputs, args, strict=False)), **kwargs}
        body = json.dumps({name: value for name, value in given.items() if value is not None}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return str(json.load(answer)["content"])


def run(settings: dict[str, Any]) -> None:
    """Run the agent to its final answer or its last step."""
    model = OpenAIModel(
        settings["model"],
        api_base=settings["base_url"],
        api_key=settings["api_key"],
        client_kwargs={"max_retries": 0},
    )
    tools = [EnvTool(spec, settings["tools_url"]) for spec in settings["tools"]]
    make = CodeAgent if settings["agent"] == "code" else ToolCallingAgent
    agent = make(tools=tools, model=model, max_steps=settings["step_limit"], verbosity_level=LogLevel.ERROR)
    agent.run(settings["task"])


def play(path: str) -> None:
    """Play one episode with the settings in a JSON file: task, agent, step_limit, tools, tools_url, base_url, api_key
    and model."""
    run(json.loads(Path(path).read_text(encoding="utf-8")))
