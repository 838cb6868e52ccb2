"""A small model from scratch: a tokenizer trained on an environment's texts, and a network with Qwen3's architecture.

A model that sees pictures is LLaVA's architecture over it, with a SigLIP tower (:attr:`ModelConfig.picture_size`).

With it, the complete path from a fresh clone to a trained agent runs on a laptop. The tokenizer is byte-level BPE and
can encode any text. Its pre-tokenizer separates numbers and given words, and lets the text between them merge into
phrases. A turn of a text environment then takes about fifteen tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llava.configuration_llava import LlavaConfig
from transformers.models.llava.modeling_llava import LlavaForConditionalGeneration

from agentgym.errors import CorruptDataError
from agentgym.trainers.kinds import ImageRoute
from agentgym.trainers.models.config import ModelConfig, Splits
from agentgym.trainers.models.products import use_faster_products
from agentgym.trainers.models.seeding import seeded_weights
from agentgym.trainers.models.vision import PROCESSOR_FILE, Vision, attach_vision, why_not_by

WORD = r"[A-Za-z]+|\d|\n+"
PAD, ACT, END, IMAGE = "<|pad|>", "<|act|>", "<|end|>", "<|image|>"

CHAT_TEMPLATE = resources.files(__package__).joinpath("tiny.jinja").read_text(encoding="utf-8")


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    words: Sequence[str] = (),
    splits: Splits = "phrases",
    *,
    has_images: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with the chat template of the small model.

    Args:
        texts: observations and actions of the environment.
        vocab_size: upper bound of the vocabulary; 256 bytes and 3 special tokens are always part of it.
        words: words that become separate tokens, so that a name copied from an observation is the same token in an
            action.
        splits: see :attr:`~agentgym.trainers.models.config.ModelConfig.splits`; ``words`` needs no ``words``.
        has_images: add the placeholder of images.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_pattern(words) if splits == "phrases" else WORD), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, ACT, END, *([IMAGE] if has_images else [])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load a saved tokenizer of :func:`train_tokenizer`.

    Raises:
        CorruptDataError: the tokenizer cannot be read.
    """
    try:
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception as error:
        raise CorruptDataError(f"the tokenizer in {folder} cannot be read: {error}") from error
    return tokenizer


def _pattern(words: Sequence[str]) -> str:
    """Return the pattern of separate tokens: words with the space before them, numbers and line ends."""
    kept = "|".join(re.escape(word) for word in sorted(words, key=lambda w: (-len(w), w)))
    return rf"(?: |(?<![A-Za-z]))(?:{kept})(?![A-Za-z])| ?\d+|\n+" if kept else r" ?\d+|\n+| ?[A-Za-z_]+"


def network_shape(config: ModelConfig, vocab_size: int, **token_ids: Any) -> Qwen3Config | LlavaConfig:
    """Return the shape of a network of this configuration."""
    whole = config.network_sizes(vocab_size)
    sizes = whole.pop("text_config", whole)
    del sizes["model_type"]
    text = Qwen3Config(
        **sizes,
        max_position_embeddings=config.max_context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        initializer_range=config.initializer_range,
        **token_ids,
    )
    if not config.picture_size:
        return text
    del whole["model_type"]
    return LlavaConfig(**whole, text_config=text, initializer_range=config.initializer_range)


def build_vision(
    tokenizer: PreTrainedTokenizerBase, config: ModelConfig, route: ImageRoute = "embedded"
) -> Vision | None:
    """Return the vision of a model from scratch; None if it reads text alone, or its engine gets no images.

    White becomes 0. Learning from pictures with a plain background is much slower if the background is far from 0.
    """
    if not config.picture_size or why_not_by("llava", route):
        return None
    shape = network_shape(config, len(tokenizer))
    shape.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
    settings = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"height": config.picture_size, "width": config.picture_size},
        "do_center_crop": False,
        "image_mean": [1.0] * 3,
        "image_std": [0.27] * 3,
    }
    return Vision(shape, {PROCESSOR_FILE: json.dumps(settings, indent=2)}, tokenizer, "a model from scratch")


def build_model(
    tokenizer: PreTrainedTokenizerBase, config: ModelConfig, seed: int, vision: Vision | None = None
) -> PreTrainedModel:
    """Build a network with Qwen3's architecture and random weights, which depend only on the seed.

    The queries and keys of a head are initialised equal ("Mimetic Initialization of Self-Attention Layers", Trockman
    and Kolter, 2023). Attention then begins by looking for the same word elsewhere, which copies names from an
    observation into an action. With independent weights this takes several times as many demonstrations.

    Args:
        vision: the vision that is attached to a model that sees; of :func:`build_vision`.
    """
    shape = network_shape(
        config,
        len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with seeded_weights(seed):
        model: Any
        if isinstance(shape, LlavaConfig):
            shape.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
            model = LlavaForConditionalGeneration(shape)
        else:
            model = Qwen3ForCausalLM(shape)
        for layer in model.get_decoder().layers:
            attention: Any = layer.self_attn
            _tie_queries_to_keys(attention.q_proj.weight, attention.k_proj.weight, config.head_dim)
    use_faster_products(model)
    if vision is not None:
        attach_vision(model, vision)
    made: PreTrainedModel = model
    return made


@torch.no_grad()
def _tie_queries_to_keys(query: torch.Tensor, key: torch.Tensor, head_dim: int) -> None:
    """Initialise the queries of every head and its shared keys with one orthogonal projection, rows ``[H * D]``."""
    num_shared = query.shape[0] // key.shape[0]
    for first in range(0, key.shape[0], head_dim):
        projection = torch.nn.init.orthogonal_(torch.empty(head_dim, key.shape[1]))
        key[first : first + head_dim] = projection
        query[first * num_shared : (first + head_dim) * num_shared] = projection.repeat(num_shared, 1)
