"""The blocks of a model: the layers that ranks gather one at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from torch.nn import Module, ModuleList

from agentgym.errors import ConfigError
from agentgym.trainers.types import ModelShape, Trunk

_SENSES: Final = re.compile("audio|image|speech|video|vision")
"""Words in the names of configurations of parts that do not read text."""


def blocks_of(trunk: Trunk) -> Sequence[Module]:
    """Return the blocks of a trunk: its largest list of as many modules as the configuration has layers.

    Architectures name the list otherwise (``layers``, ``h``, ``blocks``). Models that also see have it in the part that
    reads text; a vision tower may have as many layers, and larger ones.

    Raises:
        ConfigError: there is no such list, so ranks cannot share the model.

    Example:
        >>> from transformers import GPT2Config, GPT2Model
        >>> blocks = blocks_of(GPT2Model(GPT2Config(n_embd=8, n_layer=3, n_head=1, vocab_size=9)))
        >>> len(blocks), type(blocks[0]).__name__
        (3, 'GPT2Block')
    """
    whole: Any = trunk
    sizes = whole.config.get_text_config()
    number = getattr(sizes, "num_hidden_layers", None)
    text = whole.get_decoder() if hasattr(whole, "get_decoder") else whole
    others = {id(part) for part in parts_that_see(whole)}
    own = [part for part in text.modules() if id(part) not in others]
    lists: list[Any] = [part for part in own if isinstance(part, ModuleList) and len(part) == number]
    if not lists:
        raise ConfigError(
            f"model type {sizes.model_type!r} cannot be trained on several ranks: it has no list of its {number} "
            "layers that ranks could gather one at a time; train it on one rank"
        )
    found: Sequence[Module] = max(lists, key=_num_weights)
    return found


def parts_that_see(whole: Any) -> list[Module]:
    """Return the modules below those with a configuration of their own for images or sounds, and these themselves.

    GIT and Phi-4-multimodal have them inside of the network that reads text.
    """
    config = whole.config
    found = [getattr(config, name, None) for name in getattr(config, "sub_configs", ()) if _SENSES.search(name)]
    kinds = {one.model_type for one in found if one is not None} - {config.model_type}
    tops = [part for part in whole.modules() if getattr(getattr(part, "config", None), "model_type", None) in kinds]
    return [part for top in tops for part in top.modules()]


def _num_weights(part: Any) -> int:
    return sum(weight.numel() for weight in part.parameters())


def width_of(config: ModelShape) -> int:
    """Return the width of a model's hidden states."""
    return int(config.get_text_config().hidden_size)
