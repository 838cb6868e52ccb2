"""Conversion of GGUF files to ``from_pretrained`` folders, with quantized weights converted to float32."""

from __future__ import annotations

import functools
import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym.canonical import packaged
from agentgym.errors import CorruptDataError, UsageError, require_extra
from agentgym.trainers.models.files import why_unreadable
from agentgym.trainers.models.reading import check_tensors
from agentgym.trainers.types import Tokenizer

CARD = "README.md"
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
"""Values of ``tokenizer.ggml.pre`` whose tokenizer cuts off every digit before GPT-2's own rule (llama.cpp,
``src/llama-vocab.cpp``); transformers reads all of them as GPT-2's alone."""
READ_BY_TRANSFORMERS = ("default", "gpt-2", "llama-bpe", "qwen2")
"""Values of ``tokenizer.ggml.pre`` that transformers reads with the rule they stand for."""


def import_gguf(file: Path, out: Path, origin: str, say: Callable[[str], None] = lambda line: None) -> None:
    """Write a GGUF file's model, tokenizer, chat template and licence to a folder, with a model card.

    Args:
        out: an empty folder.
        origin: the source of the file, for the model card.

    Raises:
        MissingExtraError: the package ``gguf`` is not installed.
        CorruptDataError: the file cannot be read, or holds no causal language model.
    """
    require_extra("reading GGUF files", "train", "gguf")
    say(f"reading {file.name}")
    try:
        with _reading_once(), redirect_stderr(io.StringIO()):  # progress bars that cannot be turned off
            facts = _facts(file)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            found: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True
            )
            model, loaded = found
            check_tensors(loaded, file.name, model.config)
    except UsageError:
        raise
    except Exception as error:
        raise CorruptDataError(f"{file.name} cannot be read: {why_unreadable(file, error)}") from error
    if note := _mend_tokenizer(tokenizer, str(facts.get("tokenizer.ggml.pre", "default"))):
        say(f"note: {note}")
    if isinstance(end := facts.get("tokenizer.ggml.eos_token_id"), int):
        setattr(tokenizer, "eos_token", tokenizer.convert_ids_to_tokens(end))  # noqa: B010  (another one before 5.18)
    tokenizer.model_max_length = int(model.config.max_position_embeddings)
    for holder, name in ((model.config, "quantization_config"), (model, "hf_quantizer")):
        if hasattr(holder, name):  # the weights are widened; with these, which 5.0 does not set, they would be again
            delattr(holder, name)
    model.is_quantized = False
    say("writing the model")
    with redirect_stderr(io.StringIO()):
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    for name in ("LICENSE", "LICENSE.txt", "NOTICE"):
        if (file.parent / name).is_file():
            shutil.copy(file.parent / name, out / name)
    (out / CARD).write_text(_card(file, facts, origin, model.num_parameters(), note), encoding="utf-8")


@contextmanager
def _reading_once() -> Iterator[None]:
    """Let transformers read a file's header once, and make the table of tensor names once.

    Otherwise it reads the header four times, and makes the table for each module of the model.
    """
    import gguf

    names = ("GGUFReader", "get_tensor_name_map")
    plain = [getattr(gguf, name) for name in names]
    for name, function in zip(names, plain, strict=True):
        setattr(gguf, name, functools.cache(function))
    try:
        yield
    finally:
        for name, function in zip(names, plain, strict=True):
            setattr(gguf, name, function)


def _facts(file: Path) -> dict[str, object]:
    """Return a file's header, without the vocabulary."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    long = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "tokenizer.ggml.scores")
    return {name: field.contents() for name, field in fields.items() if name not in long}


def _mend_tokenizer(tokenizer: Tokenizer, rule: str) -> str:
    """Set the tokenizer's pre-tokenization rule from the file; return a note if the rule could not be verified."""
    backend: Any = getattr(tokenizer, "backend_tokenizer")  # noqa: B009  (the base class has none)
    if rule in DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        return ""
    if rule in READ_BY_TRANSFORMERS:
        return ""
    return f"the file's tokenizer cuts text by the rule {rule!r}, which is not checked here; compare its token ids"


def _card(file: Path, facts: dict[str, object], origin: str, num_parameters: int, note: str) -> str:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    name = facts.get("general.name", file.stem)
    licence = facts.get("general.license", "unknown")
    maker = facts.get("general.organization", "unknown")
    return str(packaged(__package__, "gguf_card.toml")["card"]).format(
        name=name,
        licence=licence,
        maker=maker,
        origin=origin,
        file=file.name,
        digest=digest,
        num_parameters=num_parameters,
        rule=facts.get("tokenizer.ggml.pre", "default"),
        note=f"; {note}" if note else "",
    )
