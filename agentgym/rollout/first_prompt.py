"""Errors for prompts that do not fit a model's context, before a run or at an episode's first prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgym.env.env import Env
from agentgym.errors import ConfigError, PromptTooLongError
from agentgym.types import Message

if TYPE_CHECKING:
    from agentgym.render.chat import ChatRenderer


def check_tools_fit(renderer: ChatRenderer, env: Env, window: int, max_new_tokens: int) -> None:
    """Raise an error if an environment's tools cannot be called, or alone leave no room for a turn.

    The environment need not be reset.

    Args:
        window: most tokens of prompt and completion together.
        max_new_tokens: most tokens of a completion.

    Raises:
        ConfigError: the model's format writes no calls and the environment takes no words, the environment needs a
            model that sees, or there is no room; the message gives the numbers and what would fit.
    """
    if env.tools and not env.takes_words and renderer.format.name == "text":
        raise ConfigError(
            f"model.codec=text writes no calls, and {env.env_id} is played by calls of its tools "
            f"({', '.join(tool.name for tool in env.tools)}): choose another format, or auto"
        )
    if renderer.vision is None:
        require_vision(env, renderer.why_text_only)
    said = (Message("user", "?"),)
    num_tokens = len(renderer.prompt_ids(said, env.tools))
    if num_tokens + max_new_tokens <= window:
        return
    advice = "raise model.max_context_tokens (--max-context-tokens in eval)"
    if renderer.config.tools_style == "schema" and env.tools:
        compact = renderer.in_style(renderer.config.changed({"tools_style": "compact"}))
        num_compact = len(compact.prompt_ids(said, env.tools))
        advice += (
            ", or describe each tool in one line: model.tools_style=compact (chat.tools_style=compact in eval), "
            f"{num_compact} tokens"
        )
    raise ConfigError(
        f"the prompt of {env.env_id} with its {len(env.tools)} tools has {num_tokens} tokens before the task is told; "
        f"with a completion of {max_new_tokens} that is more than the context of {window}: {advice}"
    )


def too_long(num_tokens: int, window: int, num_demonstrated: int = 0) -> PromptTooLongError:
    """Return the error of an episode whose first prompt fills the whole context, with the numbers.

    Args:
        num_demonstrated: tokens of the demonstrated action that does not fit behind it; 0 for a policy's own.
    """
    action = f", the demonstrated action {num_demonstrated}," if num_demonstrated else ""
    return PromptTooLongError(
        f"the first prompt has {num_tokens} tokens{action} and the context holds {window}; raise "
        "model.max_context_tokens (--max-context-tokens in eval), or shorten the prompt"
    )


def require_vision(env: Env, why: str = "") -> None:
    """Refuse an environment that needs a model that sees.

    Args:
        why: reason why the model does not see; empty for one that is built here.

    Raises:
        ConfigError: the environment shows images that its texts do not replace.
    """
    if env.needs_images:
        raise ConfigError(
            f"{env.env_id} shows images that its texts do not replace, and the model's prompts hold text alone: "
            f"{why or 'it was made without a vision tower'}; docs/vision.md lists the models that see"
        )
