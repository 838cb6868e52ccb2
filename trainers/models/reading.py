"""Weights of a model's files: all of them are read as they are stored, or the model is refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from agentgym.errors import CorruptDataError, UsageError
from agentgym.trainers.models.blocks import parts_that_see
from agentgym.trainers.models.config import Quantization
from agentgym.trainers.models.files import check_answered_once, check_are_numbers, tensor_names
from agentgym.trainers.models.products import use_faster_products
from agentgym.trainers.models.quantized import WeightReading, dequantize, reading_of
from agentgym.trainers.types import CausalLM, ModelShape

_NUM_NAMED: Final = 3
"""Number of tensors that a message names."""
_ALIGNMENT: Final = 64
"""Bytes at whose multiples torch allocates tensors. Kernels read some rows otherwise from other addresses."""
_CONSTANTS: Final = re.compile(
    r"(^|\.)(attn|attention)\.(masked_bias|bias|causal_mask)$|(^|\.)(inv_freq|position_ids)$"
)
"""Names of tensors in old files that hold no weights: causal masks, and tables that are computed from config.json."""


def read_weights(source: str, path: str | Path, quantize: Quantization) -> tuple[CausalLM, list[str]]:
    """Load a model in float32, and return it with notes on weights that were converted or left out.

    Args:
        source: the argument of ``from_pretrained``.
        path: the model's name in messages.
        quantize: storage of the matrices if they are not trained.

    Raises:
        CorruptDataError: files answer one question twice, or the architecture has other tensors than the files.
        UsageError: the weights are quantized in a way that cannot be turned into floating point.
        MissingExtraError: the library of the quantization is not installed.
    """
    folder = Path(source)
    if folder.is_dir():
        check_answered_once(folder)
    config = AutoConfig.from_pretrained(source)
    how = reading_of(config, quantize, path)
    if not how.method and folder.is_dir():
        check_are_numbers(folder, path, partial(_tables, config))
    with _without_load_report():
        found: Any = class_for(config).from_pretrained(
            source,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
            **how.options,
        )
    model, loaded = found
    check_tensors(loaded, path, config)
    model = dequantize(model, how)
    _say_what_is_tied(model)
    _align(model)
    use_faster_products(model)
    return model, [*_notes(how, path), *_left_out(model, folder), *_freeze_senses(model)]


def class_for(config: ModelShape) -> Any:
    """Return the class of transformers that loads a configuration as a language model.

    Some models that also see, such as Qwen3-VL and Mistral 3, have no class of their text alone. Loaded whole they read
    and write text as well.

    Raises:
        UsageError: there is none.
    """
    kind = config.model_type
    if type(config) in AutoModelForCausalLM._model_mapping:
        return AutoModelForCausalLM
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForImageTextToText
    raise UsageError(
        f"model type {kind!r} is no causal language model of transformers {transformers.__version__}; name a model "
        "that writes text, such as smollm2"
    )


def built(config: ModelShape, dtype: torch.dtype = torch.float32) -> CausalLM:
    """Return a model of a configuration with random weights.

    With the weights of a loaded model it computes the same numbers, to the last bit: its class, its matrix products and
    the places of its weights are the same.
    """
    model: Any = class_for(config).from_config(config, dtype=dtype)
    use_faster_products(model)
    made: CausalLM = model.eval()
    return made


def _tables(config: ModelShape) -> set[str]:
    """Return the last parts of the names of an architecture's tensors of whole numbers."""
    with torch.device("meta"):
        model = class_for(config).from_config(config)
    named = (*model.named_parameters(), *model.named_buffers())
    return {name.rpartition(".")[2] for name, tensor in named if not tensor.is_floating_point()}


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Drop transformers' report on tensors, which :func:`check_tensors` refuses."""
    logger = logging.getLogger("transformers.modeling_utils")

    def is_kept(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger.addFilter(is_kept)
    try:
        yield
    finally:
        logger.removeFilter(is_kept)


def check_tensors(loaded: Mapping[str, Collection[Any]], path: str | Path, config: ModelShape) -> None:
    """Check that a model has read all tensors of its files, and that the files had all of its tensors.

    transformers fills missing ones at random and drops others.

    Raises:
        CorruptDataError: a tensor is missing, has another shape, or was not read.
    """
    if missing := sorted(loaded["missing_keys"]):
        raise CorruptDataError(f"the model at {path} lacks {len(missing)} of its tensors: {_first_of(missing)}")
    shapes = [f"{name} is {[*found]} in place of {[*expected]}" for name, found, expected in loaded["mismatched_keys"]]
    if shapes:
        raise CorruptDataError(
            f"the model at {path} has tensors of other shapes than its config.json says: {_first_of(sorted(shapes))}"
        )
    if unread := sorted(name for name in loaded["unexpected_keys"] if not _CONSTANTS.search(name)):
        raise CorruptDataError(
            f"the model at {path} has {len(unread)} tensors that its architecture ({config.model_type}) does not read: "
            f"{_first_of(unread)}; without them it would be another model. Correct config.json, or remove them from "
            "its files if they are no part of it"
        )


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_NAMED]) + (", ..." if len(names) > _NUM_NAMED else "")


def _say_what_is_tied(model: Any) -> None:
    """Set ``tie_word_embeddings`` to what the loaded weights are; files may hold two matrices where it says one.

    Models that are built from this configuration later, here or by a server, then are the loaded one.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or embedding is None:
        return
    is_tied = head.weight is embedding.weight
    for config in (model.config, model.config.get_text_config()):
        if getattr(config, "tie_word_embeddings", is_tied) != is_tied:
            config.tie_word_embeddings = is_tied


def _align(model: Any) -> None:
    """Copy weights and tables that lie at odd addresses of the mapped file, or in another order than by rows.

    Products of single rows differ there in their last bits, and engines on other machines have aligned copies.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        is_odd = tensor.data_ptr() % _ALIGNMENT or not tensor.is_contiguous()
        if tensor.is_floating_point() and is_odd:
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


def senses_of(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """Return the parts of a model that read images or sounds, by name: those outside its text's decoder and head."""
    if model.config.get_text_config() is model.config or not hasattr(model, "get_decoder"):
        seen = {id(part) for part in parts_that_see(model)}
        return [(name, part) for name, part in model.named_modules() if id(part) in seen]
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    of_text = {id(part) for whole in (decoder, head) if whole is not None for part in whole.modules()}
    holders = {id(part) for part in model.modules() if any(id(inner) in of_text for inner in part.modules())}
    return [(name, part) for name, part in model.named_modules() if id(part) not in of_text | holders]


def _freeze_senses(model: Any) -> list[str]:
    """Freeze the parts that read images or sounds; return a note on them."""
    frozen = {id(weight): weight for _, part in senses_of(model) for weight in part.parameters()}
    for weight in frozen.values():
        weight.requires_grad_(False)
    if not frozen:
        return []
    return [
        f"{type(model).__name__} also reads images or sounds: {len(frozen)} of its tensors do, and stay as they are"
    ]


def _notes(how: WeightReading, path: str | Path) -> list[str]:
    if not how.is_converted:
        return []
    return [f"the weights of {path} are quantized ({how.method}); they are converted to float32, and saved so"]


def _left_out(model: Any, folder: Path) -> list[str]:
    """Return a note on tensors of a folder that the model's class ignores, as a text model does a vision tower."""
    ignored = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    if not ignored or not folder.is_dir():
        return []
    own = set(model.state_dict())
    names = [name for name in tensor_names(folder) if name not in own and not _CONSTANTS.search(name)]
    parts = sorted(name for name in names if any(pattern.search(name) for pattern in ignored))
    if not parts:
        return []
    return [
        f"{type(model).__name__} leaves out {len(parts)} tensors of {folder}, such as vision or speculative layers "
        f"({_first_of(parts)}); a saved model lacks them"
    ]
