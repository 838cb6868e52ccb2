"""Models and tokenizers: loading, adapters, saving."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from agentgym.errors import ConfigError, CorruptDataError, UsageError, require_extra
from agentgym.render.config import ChatConfig
from agentgym.rollout.context import FULL, ContextConfig
from agentgym.trainers.config.train import LoraSettings, Quantization
from agentgym.trainers.engines.torch.weights import merged_bias, merged_weight
from agentgym.trainers.models.quantized import is_quantized, keep_exact, quantization_config
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.types import CausalLM, Tokenizer, unwrapped

disable_progress_bar()  # type: ignore[no-untyped-call]  # loading and saving take a moment and have no place among the run's own lines


def load_model(path: str | Path, quantize: Quantization = "none") -> tuple[CausalLM, Tokenizer]:
    """Return a causal language model (fp32) and its tokenizer.

    Args:
        path: a source that :func:`~agentgym.trainers.models.sources.local_model` reads.
        quantize: how its matrices are kept, where they are not trained.

    Raises:
        MissingExtraError: what quantizes is not installed.
        UsageError: there is no such folder, or it is no model.
        CorruptDataError: there is one, and it cannot be read.
    """
    source = local_model(path)
    bits = quantization_config(quantize)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, quantization_config=bits)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        kind = CorruptDataError if Path(source).is_dir() else UsageError
        raise kind(f"the model at {path} cannot be loaded: {type(error).__name__}: {first_line}") from error
    return keep_exact(model), tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a model, as :func:`load_model` does.

    Raises:
        UsageError: there is no such folder, or it cannot be read.
    """
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(local_model(path))
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UsageError(f"the tokenizer at {path} cannot be loaded: {type(error).__name__}: {first_line}") from error
    return tokenizer


def add_lora(model: CausalLM, settings: LoraSettings, seed: int) -> CausalLM:
    """Return the model with low-rank adapters, which alone are trained; rank 0 gives the model back.

    Raises:
        ConfigError: it has no layers of these names.
    """
    if settings.rank == 0:
        return model
    _check_targets(model, settings.target_modules)
    if settings.quantize == "none":  # peft imports bitsandbytes where it is, which then warns about its own kernels
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    require_extra("LoRA", "train", "peft")
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(settings.target_modules),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with warnings.catch_warnings():  # peft reads an attribute that transformers is about to rename
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
            adapted: CausalLM = get_peft_model(model, config)
    return adapted


def _check_targets(model: CausalLM, names: tuple[str, ...]) -> None:
    """Refuse adapters on layers that a model lacks: peft would leave them out without a word.

    Raises:
        ConfigError: with the layers it has.
    """
    modules = dict(model.named_modules())
    missing = [name for name in names if not any(at == name or at.endswith(f".{name}") for at in modules)]
    if missing:
        head = model.get_output_embeddings()
        linear = {at.rpartition(".")[2] for at, module in modules.items() if _is_linear(module) and module is not head}
        raise ConfigError(
            f"model.lora.target_modules: {model.config.model_type} has no {', '.join(missing)}; its linear layers are "
            f"{', '.join(sorted(linear))}"
        )


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"  # as GPT-2 calls it


def frozen_copy(model: CausalLM) -> CausalLM:
    """A copy of the model that is never trained: the reference of a KL term."""
    return never_trained(copy.deepcopy(model))


def never_trained(model: CausalLM) -> CausalLM:
    """Return the model itself, without gradients or dropout from now on."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def plain_model(model: CausalLM) -> CausalLM:
    """The model itself, or a copy with its adapters merged in, and its matrices in floating point again."""
    if is_quantized(model):
        return _in_floating_point(model)
    return copy.deepcopy(model).merge_and_unload() if hasattr(model, "merge_and_unload") else model


@torch.no_grad()
def _in_floating_point(model: CausalLM) -> CausalLM:
    base = unwrapped(model)
    config = copy.deepcopy(base.config)
    del config.quantization_config
    plain: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    plain.generation_config = base.generation_config
    for name, module in plain.named_modules():
        if isinstance(getattr(module, "weight", None), torch.nn.Parameter):
            source = base.get_submodule(name)
            module.weight.copy_(merged_weight(source))
            if (bias := merged_bias(source)) is not None:
                module.bias.copy_(bias)
    frozen: CausalLM = plain.eval()
    return frozen


def plain_tensors(model: CausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of :func:`plain_model` by name; of those that share memory (tied embeddings) the first alone."""
    seen: set[int] = set()
    for name, tensor in plain_model(model).state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            yield name, tensor


def base_tensors(model: CausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors under a model's adapters, by the names they have without any."""
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), parameter


CONTEXT_FILE = "agentgym_context.json"
"""In a model's folder: the context it was trained with, where that is not the whole history."""


CHAT_FILE = "agentgym_chat.json"
"""In a model's folder: how its conversations were rendered in training, where that is not the default."""


def save_model(
    model: CausalLM,
    tokenizer: Tokenizer,
    folder: Path,
    context: ContextConfig = FULL,
    chat: ChatConfig = ChatConfig(),  # noqa: B008  (frozen)
) -> None:
    """Write a plain ``from_pretrained`` folder, adapters merged in, replacing an old one only at the end.

    Args:
        context, chat: what the model's prompts hold and how they are rendered. Kept in the folder, so that an
            evaluation makes the same prompts.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    plain_model(model).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    if context != FULL:
        (partial / CONTEXT_FILE).write_text(json.dumps(asdict(context), indent=2) + "\n", encoding="utf-8")
    if chat != ChatConfig():
        (partial / CHAT_FILE).write_text(json.dumps(asdict(chat), indent=2) + "\n", encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
