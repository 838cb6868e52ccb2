"""Runs mini-swe-agent, and sends its shell commands to the environment's tool over HTTP."""

from __future__ import annotations

import json
import logging
import platform
import re
import urllib.request
from pathlib import Path
from typing import Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

_EXIT = re.compile(r"\n?\[exit code (\d+)\]$")


class ToolEnvironment(LocalEnvironment):  # type: ignore[misc]
    """An environment of mini-swe-agent that runs commands through a tool of agentgym's environment."""

    url = ""

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command and return its output as mini-swe-agent expects it."""
        body = json.dumps({"command": action.get("command", "")}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            text = str(json.load(answer)["content"])
        found = _EXIT.search(text)
        code = int(found[1]) if found else 0
        shown = _EXIT.sub("", text) if found else "" if text == "[no output]" else text
        output = {"output": shown, "returncode": code, "exception_info": ""}
        self._check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the variables of prompt templates, for a fixed machine, so that prompts are equal everywhere."""
        fixed = {"system": "Linux", "release": "", "version": "", "machine": platform.machine()}
        return {**self.config.model_dump(), **fixed, **kwargs}


def run(settings: dict[str, Any]) -> str:
    """Run the agent and return its exit status."""
    config = get_config_from_spec(settings["config"])
    is_textual = "mswea_bash_command" in config["agent"]["system_template"]
    environment = ToolEnvironment(**config.get("environment", {}))
    environment.url = settings["tool_url"]
    given = {key: value for key, value in config.get("model", {}).items() if key != "model_class"}
    endpoint = {"api_base": settings["base_url"], "api_key": settings["api_key"]}
    model = (LitellmTextbasedModel if is_textual else LitellmModel)(
        **{
            **given,
            "model_name": f"openai/{settings['model']}",
            "model_kwargs": {**given.get("model_kwargs", {}), **endpoint},
            "cost_tracking": "ignore_errors",
        }
    )
    own = {key: value for key, value in config["agent"].items() if key in ("system_template", "instance_template")}
    agent = DefaultAgent(model, environment, **own, step_limit=settings["step_limit"], cost_limit=0.0)
    return str(agent.run(settings["task"]).get("exit_status", ""))


def play(path: str) -> None:
    """Play one episode with the settings in a JSON file: task, config, tool_url, base_url, api_key, model, step_limit
    and tool."""
    logging.disable(logging.WARNING)
    print(run(json.loads(Path(path).read_text(encoding="utf-8"))))
