"""The renderer of a model's prompts, and a check that the model has rows for all of their tokens."""

from __future__ import annotations

from pathlib import Path

from agentgym.errors import CorruptDataError
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.render.guard import control_texts
from agentgym.trainers.kinds import ImageRoute
from agentgym.trainers.models.model import end_ids, num_known_ids
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.models.vision import Vision, find_vision, why_not_by
from agentgym.trainers.types import CausalLM, Tokenizer


def renderer_for(
    path: str | Path,
    tokenizer: Tokenizer,
    chat: ChatConfig,
    *,
    route: ImageRoute = "embedded",
    own_vision: Vision | None = None,
) -> ChatRenderer:
    """Return the renderer of a model's prompts, with its vision if it sees.

    Args:
        path: the model's source; empty for a model that is built here.
        route: engine that gets the images of prompts; empty: none does.
        own_vision: vision of a model that is built here.
    """
    if not path:
        renderer = ChatRenderer(tokenizer, chat, vision=own_vision)
        renderer.why_text_only = "" if own_vision is not None else why_not_by("llava", route)
        return renderer
    vision, why_text_only = find_vision(local_model(path), tokenizer, route)
    renderer = ChatRenderer(tokenizer, chat, end_ids(path), vision=vision)
    renderer.why_text_only = why_text_only
    return renderer


def check_ids(model: CausalLM, tokenizer: Tokenizer, renderer: ChatRenderer) -> None:
    """Check that a model knows every token that its prompts and completions can hold.

    Special tokens that no prompt holds may lie beyond, as Gemma 3's for images.

    Args:
        renderer: the renderer of the prompts, with the same tokenizer.

    Raises:
        CorruptDataError: it lacks some; the message names one, and the call that adds its row.
    """
    num_known = num_known_ids(model)
    beyond = {text: number for text, number in possible_tokens(tokenizer, renderer).items() if number >= num_known}
    if not beyond:
        return
    text, number = min(beyond.items(), key=lambda token: token[1])
    raise CorruptDataError(
        f"prompts can hold {len(beyond)} tokens that the model has no rows for: {text} has the id {number}, and the "
        f"model knows ids up to {num_known - 1}. Add rows by model.resize_token_embeddings(len(tokenizer)) and save "
        "the model, or take the tokenizer that it was trained with"
    )


def possible_tokens(tokenizer: Tokenizer, renderer: ChatRenderer) -> dict[str, int]:
    """Return the added tokens that prompts and completions can hold, with their ids.

    These are the tokens that the template or the tool-call format writes, those that end turns, and those that any text
    may hold. Other special tokens are not among them, since texts from outside never become such a token.
    """
    template, special = str(tokenizer.chat_template), set(control_texts(tokenizer))
    marks = " ".join((*(renderer.family.think or ()), *renderer.format.marks))
    return {
        text: number
        for text, number in tokenizer.get_added_vocab().items()
        if text in template or text in marks or text not in special or number in renderer.turn_end_ids
    }
