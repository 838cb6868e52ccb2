"""The card of a trained model: how it is asked, with the text of an example prompt."""

from __future__ import annotations

from agentgym.render.chat import ChatRenderer
from agentgym.rollout.context import ContextConfig


def model_card(renderer: ChatRenderer, context: ContextConfig, env: str, base: str, prompt: str) -> str:
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
    return f"""# A model trained with agentgym

Trained on {env}, from {base or "random weights"}.

## Ask it as it was trained

* Tools are described {tools}, in the style `{renderer.config.tools_style}`.
* Calls are read in the format `{renderer.format.name}`.
* Prompts hold the history by the policy `{context.policy}`.

`agentgym eval ENV --policy FOLDER` and `agentgym serve-model FOLDER` read these settings from the folder. Other
programs build prompts like this one, the first of a training task, special tokens included:

{fence}text
{prompt}
{fence}
"""
