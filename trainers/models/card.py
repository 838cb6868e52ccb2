"""The card of a trained model: how it is asked, with the text of an example prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agentgym.render.chat import ChatRenderer
from agentgym.rollout.context import ContextConfig


@dataclass(frozen=True, slots=True)
class Card:
    """The card of a trained model, and the options by which an endpoint asks it as it was trained."""

    text: str
    options: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write both into the model's folder."""
        (folder / "README.md").write_text(self.text, encoding="utf-8")
        (folder / ENDPOINT_FILE).write_text(json.dumps(dict(self.options), indent=2) + "\n", encoding="utf-8")


def model_card(renderer: ChatRenderer, context: ContextConfig, env: str, base: str, prompt: str) -> Card:
    """Return the card of a model that a run has trained.

    Args:
        renderer: the renderer of its prompts.
        context: what of a conversation its prompts hold.
        env: the environments that it was trained on.
        base: the source of the model that training began with; empty for a new one.
        prompt: the text of a first prompt of training.
    """
    told = "not at all" if not renderer.family.tells_tools else "as text of the first message"
    tools = "by the chat template" if renderer.template.passes_tools else told
    fence = "~" * max(4, 1 + max((len(run) for run in prompt.split("\n") if set(run) == {"~"}), default=0))
    options = endpoint_options(renderer)
    address = "openai:URL?" + "&".join(f"{name}={value}" for name, value in options.items())
    text = f"""# A model trained with agentgym

Trained on {env}, from {base or "random weights"}.

## Ask it as it was trained

* Tools are described {tools}, in the style `{renderer.config.tools_style}`.
* Calls are read in the format `{renderer.format.name}`.
* Prompts hold the history by the policy `{context.policy}`.

`agentgym eval ENV --policy FOLDER` and `agentgym serve-model FOLDER` read these settings from the folder. An endpoint
that serves the model is asked so by `{address}`. Other programs
build prompts like this one, the first of a training task, special tokens included:

{fence}text
{prompt}
{fence}
"""
    return Card(text, options)


ENDPOINT_FILE: Final = "agentgym_endpoint.json"
"""File in a trained model's folder with the options of an ``openai:`` address."""


def endpoint_options(renderer: ChatRenderer) -> dict[str, str]:
    """Return the options with which an endpoint's prompts are those of a renderer."""
    results = "tool" if renderer.template.abilities.results else "user"
    form = {"format": renderer.format.name, "results": results}
    if renderer.template.passes_tools:
        return {"tools": "template", **form}
    return {"tools": "text", **form, "tools_style": renderer.config.tools_style}
