"""Models and tokenizers: loading, adapters, saving."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from agentgym.canonical import read_json
from agentgym.errors import ConfigError, CorruptDataError, UsageError, require_extra
from agentgym.render.config import ChatConfig
from agentgym.rollout.context import CONTEXT_FILE, FULL, ContextConfig
from agentgym.trainers.kinds import ImageRoute
from agentgym.trainers.models.adapters import continue_adapters
from agentgym.trainers.models.card import Card
from agentgym.trainers.models.config import LoraSettings, Quantization
from agentgym.trainers.models.files import why_unreadable
from agentgym.trainers.models.merged import merged_other, merged_weight
from agentgym.trainers.models.precision import dtype_for, sent_as
from agentgym.trainers.models.quantized import is_four_bit, is_quantized, keep_exact
from agentgym.trainers.models.reading import built, read_weights, senses_of
from agentgym.trainers.models.seeding import seeded_weights
from agentgym.trainers.models.sources import local_model, share_weights
from agentgym.trainers.models.vision import attach_vision, find_vision, vision_of
from agentgym.trainers.types import CausalLM, HasParameters, Tokenizer, unwrapped
from agentgym.visible_text import visible

ModuleT = TypeVar("ModuleT", bound=HasParameters)

_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
"""Files with a tokenizer's vocabulary, of which a model's folder has at least one."""
disable_progress_bar()  # type: ignore[no-untyped-call]  # loading and saving take a moment and have no place among the run's own lines


def _on_stderr(text: str) -> None:
    print(visible(text), file=sys.stderr)


def load_model(
    path: str | Path,
    quantize: Quantization = "none",
    tokenizer: Tokenizer | None = None,
    say: Callable[[str], None] = _on_stderr,
    *,
    route: ImageRoute = "embedded",
) -> tuple[CausalLM, Tokenizer]:
    """Load a causal language model in float32 and its tokenizer.

    Args:
        path: a source that :func:`~agentgym.trainers.models.sources.local_model` reads.
        quantize: storage of the matrices if they are not trained.
        tokenizer: the model's tokenizer, if it has been loaded before.
        say: receives notes on weights that were converted or left out.
        route: engine that gets the images of prompts, and keeps placeholders out of its distribution; empty: none does.

    Raises:
        MissingExtraError: the quantization library is not installed.
        UsageError: the folder does not exist or contains no model, or its weights are quantized in a way that cannot be
            turned into floating point.
        CorruptDataError: the model exists but cannot be read, or not all of its tensors are.
    """
    source = local_model(path)
    try:
        tokenizer = tokenizer_in(source) if tokenizer is None else tokenizer
        model, notes = read_weights(source, path, quantize)
        vision, why_text_only = find_vision(source, tokenizer, route)
    except UsageError:
        raise
    except Exception as error:
        kind = CorruptDataError if Path(source).is_dir() else UsageError
        raise kind(f"the model at {path} cannot be loaded: {why_unreadable(Path(source), error)}") from error
    if vision is not None:
        attach_vision(model, vision)
    if notes and notes[-1].endswith("stay as they are"):  # the note on a vision tower
        notes[-1:] = [] if vision else [f"{notes[-1]}, since prompts hold text alone: {why_text_only} (docs/vision.md)"]
    for note in notes:
        say(f"note: {note}")
    _check_vocabulary(tokenizer, num_known_ids(model), path)
    return keep_exact(model), tokenizer


def num_known_ids(model: CausalLM) -> int:
    """Return the number of token ids that a model has rows for."""
    rows: Any = model.get_input_embeddings().weight
    return int(rows.shape[0])


def _check_vocabulary(tokenizer: Tokenizer, num_known: int, path: str | Path) -> None:
    """Check that a model knows its tokenizer's tokens; added ones may be beyond, as Gemma 3's for images.

    Raises:
        CorruptDataError: it does not, so the tokenizer is another model's.
    """
    end = tokenizer.eos_token_id
    if end is not None and end >= num_known:
        has = f"its end token has the id {end}"
    elif tokenizer.vocab_size > num_known:
        has = f"it has {tokenizer.vocab_size} tokens"
    else:
        return
    raise CorruptDataError(
        f"the tokenizer at {path} is not the model's: {has}, and the model knows ids up to {num_known - 1}; copy "
        "tokenizer.json and tokenizer_config.json from the model that it was trained from"
    )


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer of a model.

    Raises:
        UsageError: the folder does not exist, or the tokenizer cannot be read.
    """
    source = local_model(path)
    try:
        return tokenizer_in(source)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the tokenizer at {path} cannot be loaded: {why_unreadable(Path(source), error)}") from error


def tokenizer_in(source: str) -> Tokenizer:
    """Load the tokenizer of a ``from_pretrained`` folder or hub name.

    Raises:
        CorruptDataError: the folder has no tokenizer; transformers fails on some, and fills others with special tokens.
    """
    folder = Path(source)
    lacks_files = folder.is_dir() and not any(list(folder.glob(pattern)) for pattern in _VOCABULARIES)
    tokenizer: Tokenizer | None = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except Exception:
        if not lacks_files:
            raise
    if tokenizer is None or (lacks_files and tokenizer.vocab_size <= len(tokenizer.all_special_ids)):
        raise CorruptDataError(
            f"{source} has no tokenizer; copy tokenizer.json and tokenizer_config.json into it, from the model that it "
            "was trained from"
        )
    return tokenizer


def end_ids(path: str | Path) -> tuple[int, ...]:
    """Return the tokens at which a model's own generation ends, by the folder's ``generation_config.json``.

    Many models name more than their tokenizer's end token, as Qwen2.5 does ``<|im_end|>`` and ``<|endoftext|>``.

    Raises:
        CorruptDataError: the file cannot be read.
    """
    file = Path(local_model(path)) / "generation_config.json"
    if not file.is_file():
        return ()
    try:
        found = read_json(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise CorruptDataError(f"{file} cannot be read ({error})") from error
    return as_ids(found)


def as_ids(eos_token_id: object) -> tuple[int, ...]:
    """Return the end tokens of a generation configuration, which holds one, several or none.

    Example:
        >>> as_ids([151645, 151643]), as_ids(2), as_ids(None)
        ((151645, 151643), (2,), ())
    """
    if isinstance(eos_token_id, list):
        return tuple(eos_token_id)
    return (eos_token_id,) if isinstance(eos_token_id, int) else ()


def train_vision(model: CausalLM) -> None:
    """Train the vision tower and the projector of a model, too.

    Raises:
        ConfigError: it has none, or its family is not among those that see.
    """
    if vision_of(model) is None:
        raise ConfigError(f"model.vision=trained: {model.config.model_type} does not see here (docs/vision.md)")
    for _, part in senses_of(unwrapped(model)):
        part.requires_grad_(True)


def add_lora(model: CausalLM, settings: LoraSettings, seed: int) -> CausalLM:
    """Add low-rank adapters, and train only those; with rank 0 return the model itself.

    Raises:
        ConfigError: the model has no layers with the names in ``target_modules``, or adapters of a folder differ.
        CorruptDataError: adapters of a folder do not fit the model.
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
        exclude_modules=[name for name, part in senses_of(model) if is_linear(part)] or None,
        task_type="CAUSAL_LM",
    )
    with seeded_weights(seed):
        with warnings.catch_warnings():  # peft reads an attribute that transformers is about to rename
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
            try:
                adapted: CausalLM = get_peft_model(model, config)
            except ValueError as error:  # layers of Mamba that peft cannot adapt, say
                raise ConfigError(f"model.lora.target_modules: {error}") from error
    if settings.path:
        continue_adapters(adapted, settings)
    return adapted


def _check_targets(model: CausalLM, names: tuple[str, ...]) -> None:
    """Check that the model has all layers in ``target_modules``; peft would silently ignore missing ones.

    Raises:
        ConfigError: a layer is missing; the message lists the layers that exist. Or it shares its matrix with another
            layer, so that merged adapters would change both.
    """
    modules = dict(model.named_modules())
    missing = [name for name in names if not any(at == name or at.endswith(f".{name}") for at in modules)]
    if missing:
        head = model.get_output_embeddings()
        linear = {at.rpartition(".")[2] for at, module in modules.items() if is_linear(module) and module is not head}
        raise ConfigError(
            f"model.lora.target_modules: {model.config.model_type} has no {', '.join(missing)}; its linear layers are "
            f"{', '.join(sorted(linear))}"
        )
    odd = {at.rpartition(".")[2]: part for at, part in modules.items() if is_linear(part) and not _is_matrix(part)}
    if others := sorted(odd.keys() & {name.rpartition(".")[2] for name in names}):
        raise ConfigError(
            f"model.lora.target_modules: {', '.join(others)} of {model.config.model_type} "
            f"({type(odd[others[0]]).__name__}) is no plain product with a matrix, so it takes no adapters: leave it "
            "out"
        )
    shared = model.get_output_embeddings(), model.get_input_embeddings()
    if None in shared or shared[0].weight is not shared[1].weight:
        return
    ends = {at.rpartition(".")[2] for at, module in modules.items() if module in shared}
    if tied := sorted(ends & {name.rpartition(".")[2] for name in names}):
        raise ConfigError(
            f"model.lora.target_modules: {model.config.model_type} has one matrix for {' and '.join(sorted(ends))}, "
            f"and adapters of one would change both: leave out {', '.join(tied)}"
        )


def is_linear(module: torch.nn.Module) -> bool:
    """Return True if a module is a matrix that adapters can be on."""
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"  # as GPT-2 calls it


def _is_matrix(module: Any) -> bool:
    """Return True unless a subclass of a linear layer computes something else, as routers and grouped layers do."""
    weight = module.weight
    if type(module) is torch.nn.Linear or not isinstance(module, torch.nn.Linear):
        return True
    if weight.shape != (module.out_features, module.in_features) or not weight.is_floating_point():
        return True  # packed, with an adapter layer of its own
    given = torch.linspace(-1, 1, 2 * module.in_features, device=weight.device, dtype=weight.dtype).reshape(1, 2, -1)
    try:
        with torch.no_grad():
            made, expected = module(given), torch.nn.functional.linear(given, weight, module.bias)
    except Exception:  # of code that agentgym has not seen
        return False
    if not isinstance(made, torch.Tensor) or made.shape != expected.shape:
        return False
    return weight.is_meta or torch.allclose(made, expected, atol=1e-3, rtol=1e-2)


def frozen_copy(model: CausalLM) -> CausalLM:
    """Return a frozen copy of the model, the reference of a KL penalty."""
    return never_trained(copy.deepcopy(model))


def copy_of_trained(module: ModuleT) -> ModuleT:
    """Return a copy whose trained parameters are its own. It shares frozen ones, such as the weights under adapters."""
    return copy.deepcopy(module, {id(weight): weight for weight in module.parameters() if not weight.requires_grad})


def never_trained(model: CausalLM) -> CausalLM:
    """Disable gradients and dropout of a model, and return the model."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def plain_model(model: CausalLM) -> CausalLM:
    """Return the model itself, or a copy with merged adapters and matrices in floating point."""
    if is_quantized(model):
        return _in_floating_point(model)
    return copy.deepcopy(model).merge_and_unload() if hasattr(model, "merge_and_unload") else model


@torch.no_grad()
def _in_floating_point(model: CausalLM) -> CausalLM:
    """Return a model's copy in floating point; parameters of other names, such as sinks and scales, are copied too."""
    base = unwrapped(model)
    config = copy.deepcopy(base.config)
    del config.quantization_config
    plain: Any = built(config)
    plain.generation_config = base.generation_config
    for name, tensor in (*plain.named_parameters(), *plain.named_buffers()):
        at, _, kind = name.rpartition(".")
        source, own = base.get_submodule(at), plain.get_submodule(at)
        if kind == "weight":
            found = merged_weight(source)
            # bitsandbytes stores GPT-2's layers, which are input by output, as output by input
            is_turned = type(own).__name__ == "Conv1D" and is_four_bit(getattr(source, "base_layer", source))
            tensor.copy_(found.t() if is_turned else found)
        else:
            tensor.copy_(merged_other(source, kind))
    made: CausalLM = plain
    return made


def plain_tensors(model: CausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors of :func:`plain_model` by name; tensors that share memory (tied embeddings) occur once."""
    seen: set[int] = set()
    for name, tensor in plain_model(model).state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            yield name, tensor


def save_weights(model: CausalLM, folder: Path, dtypes: Collection[str]) -> None:
    """Write the weights of :func:`plain_model` for servers with these dtypes, rounded as the servers would."""
    plain: Any = plain_model(model)
    dtype = dtype_for(dtypes)
    state = {name: sent_as(tensor.detach(), dtype).cpu() for name, tensor in plain_tensors(plain)}
    plain.save_pretrained(folder, state_dict=state)


def base_tensors(model: CausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors below a model's adapters, under their names in a model without adapters."""
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            yield plain_name(name), parameter


def plain_name(name: str) -> str:
    """Return a weight's name in a model without adapters.

    Example:
        >>> plain_name("base_model.model.model.layers.0.mlp.up_proj.base_layer.weight")
        'model.layers.0.mlp.up_proj.weight'
    """
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


CHAT_FILE = "agentgym_chat.json"
"""File in a model's folder with the chat settings of training, if they are not the defaults."""


def save_model(
    model: CausalLM,
    tokenizer: Tokenizer,
    folder: Path,
    context: ContextConfig = FULL,
    chat: ChatConfig = ChatConfig(),  # noqa: B008  (frozen)
    card: Card | None = None,
) -> None:
    """Write a plain ``from_pretrained`` folder, adapters merged in, replacing an old one only at the end.

    Args:
        context, chat: context policy and chat settings of the model's prompts, stored in the folder so that an
            evaluation builds the same prompts.
        card: the folder's card, which tells people and endpoints the same.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    plain_model(model).save_pretrained(partial)
    share_weights(partial)
    tokenizer.save_pretrained(partial)
    if (vision := vision_of(model)) is not None:
        vision.save(partial)
    if context != FULL:
        (partial / CONTEXT_FILE).write_text(json.dumps(asdict(context), indent=2) + "\n", encoding="utf-8")
    if chat != ChatConfig():
        (partial / CHAT_FILE).write_text(json.dumps(asdict(chat), indent=2) + "\n", encoding="utf-8")
    if card is not None:
        card.write(partial)
    earlier = folder.with_name(folder.name + ".earlier")
    shutil.rmtree(earlier, ignore_errors=True)
    if folder.exists():
        folder.rename(earlier)  # removing it takes longer, and a killed process would leave no model
    partial.rename(folder)
    shutil.rmtree(earlier, ignore_errors=True)
