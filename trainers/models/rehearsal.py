"""A rehearsal of saving before training: everything but the weights is written once to a temporary folder."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from agentgym.errors import ConfigError, first_cause, gist
from agentgym.trainers.models.model import as_ids, plain_model
from agentgym.trainers.models.quantized import is_quantized
from agentgym.trainers.types import CausalLM, HasParameters, Tokenizer, unwrapped


def prepare_saving(model: CausalLM, tokenizer: Tokenizer, turn_ends: Sequence[int] = ()) -> None:
    """Let a model's generation end where its turns end, and save all but its weights to a temporary folder.

    Libraries check some files when they are written, which is hours later. Adapters are merged on the meta device.

    Args:
        turn_ends: tokens at which the chat template's turns end. Base models' files name another token alone.

    Raises:
        ConfigError: the model could not be saved after training.
    """
    plain: Any = unwrapped(model)
    settings = getattr(plain, "generation_config", None)
    if settings is not None:
        plain.generation_config = _generation(settings, turn_ends)
    try:
        with tempfile.TemporaryDirectory() as folder:
            outline: Any = plain if is_quantized(model) else plain_model(without_weights(model))
            outline.config.save_pretrained(folder)
            if settings is not None:
                outline.generation_config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except Exception as error:
        cause = first_cause(error)
        raise ConfigError(
            f"the model could not be saved after training ({type(cause).__name__}: {gist(cause)}); mend the file of "
            "its folder that this names, and begin again"
        ) from error


def _generation(settings: GenerationConfig, turn_ends: Sequence[int]) -> GenerationConfig:
    """Return settings of generation that end at turns' ends, and that transformers agrees to save."""
    made = copy.deepcopy(settings)
    if ends := list(dict.fromkeys([*turn_ends, *as_ids(settings.eos_token_id)])):
        made.eos_token_id = ends if len(ends) > 1 else ends[0]
    try:
        made.validate(strict=True)
    except ValueError:  # mostly a temperature beside do_sample=false, which transformers loads and does not save
        vars(made)["do_sample"] = True
    vars(made)["_from_model_config"] = False  # else loading would take the end tokens of config.json
    return made


def without_weights(model: HasParameters) -> Any:
    """Return a copy whose parameters are on the meta device, where they take no memory."""
    empty = {
        id(p): torch.nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    return copy.deepcopy(model, dict[int, object](empty))
