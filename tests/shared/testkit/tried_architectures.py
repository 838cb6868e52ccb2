"""The table of every type of transformers: trained on one rank and on two, or refused for one of ``REASONS``.

``PYTHONPATH=.:tests/shared python -m testkit.tried_architectures docs/scale.md`` tries all, and writes
``every_architecture.json`` and the page's table.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from agentgym.errors import ConfigError, UsageError
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.blocks import blocks_of
from agentgym.trainers.models.check import check_model
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.models.model import add_lora, is_linear, load_model, save_model
from testkit import TESTKIT
from testkit.architecture_steps import TOKENIZER, again, logits, trained
from testkit.engine_plays import play_all, run
from testkit.every_architecture import KINDS, UNTRIED, model_of
from testkit.family_episodes import write_between
from testkit.ranks import launched

REASONS = {
    "an encoder": r"is no causal language model, so it cannot act",
    "no class": "is no causal language model of transformers",
    "no way to sample": "the embedded engine cannot sample from",
    "not its own head": "cannot be trained here",
    "no adapters": r"model\.lora\.target_modules",
    "no list of layers": "cannot be trained on several ranks",
    "experts": r"is a mixture of \d+ experts, and cannot be trained with 2 ranks",
}
"""Parts of the refusals by short names."""
_MEANINGS = {
    "": "trained; on two ranks with the weights of one",
    "no adapters": "trained with all weights; adapters on its router or its state space are refused",
    "experts": "a mixture of experts, which [one rank trains](engines.md#the-embedded-engine)",
    "no list of layers": "it has no list of its layers",
    "no way to sample": "the embedded engine cannot sample from it",
    "not its own head": "its logits are not its head's, or its code does not read plain text",
    "an encoder": "an encoder: later tokens change earlier ones",
    "no class": "transformers does not load what it saved as a causal language model",
}
TRIED = tuple(kind for kind in KINDS if kind not in UNTRIED)
RESULTS = Path(__file__).with_name("every_architecture.json")
BEGIN, END = "<!-- table of architectures -->", "<!-- end of the table of architectures -->"
RANKED = str(TESTKIT / "ranked_every_architecture.py")


def reason_of(told: str) -> str:
    """Return the short name of a refusal; empty for a type that is trained."""
    found = [name for name, part in REASONS.items() if re.search(part, told)]
    assert not told or found, told
    return found[0] if found else ""


def parts_of_blocks(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """Return the modules of a model's layers by name; those of the whole trunk where it has no list of them."""
    trunk: Any = trunk_of(model)
    try:
        return [part for block in blocks_of(trunk) for part in block.named_modules()]
    except ConfigError:
        return list(trunk.named_modules())


def tried(kind: str, folder: Path) -> str:
    """Load, play, train and save a model of a type; return the reason if it is refused, else an empty text."""
    original = model_of(kind)
    save_model(original, TOKENIZER, folder / "base")
    try:
        model, _ = load_model(folder / "base", say=lambda line: None)
        check_model(model)
        engine = TorchEngine(model, num_slots=4, max_context_tokens=128)
    except (ConfigError, UsageError) as error:
        return str(error)
    before = logits(original)
    torch.testing.assert_close(logits(model), before, atol=1e-4, rtol=1e-3)
    run(play_all(engine, model, num_sessions=2, num_turns=2))
    model = again(trained(model), folder / "trained")
    assert not torch.equal(logits(model), before)
    try:
        names = {name.rpartition(".")[2] for name, part in parts_of_blocks(model) if is_linear(part)}
        targets = tuple(sorted(name for name in names if not name.isdigit()))
        adapted = add_lora(model, LoraSettings(rank=2, target_modules=targets), seed=0)
    except ConfigError as error:
        return str(error)
    again(trained(adapted), folder / "adapted")
    return ""


def tried_on_two_ranks(kinds: Iterable[str], folder: Path, start: Callable[..., object]) -> dict[str, str]:
    """Return the reason for which two ranks refuse a type, or an empty text, by type; one start tries them all.

    Args:
        start: starts a number of ranks with arguments.
    """
    start(2, RANKED, str(folder / "told.json"), *kinds)
    found: dict[str, str] = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    return found


def recorded() -> dict[str, list[str]]:
    """Return the short reasons for one rank and for two, by type, as :func:`recorded_release` gave them."""
    found: dict[str, list[str]] = json.loads(RESULTS.read_text(encoding="utf-8"))["types"]
    return found


def recorded_release() -> str:
    """Return the release of transformers of :func:`recorded`."""
    return str(json.loads(RESULTS.read_text(encoding="utf-8"))["transformers"])


def table() -> str:
    """Return the table of the documentation."""
    results = recorded()
    counts = [Counter(both[at] for both in results.values()) for at in range(2)]
    rows = [f"| {meaning} | {counts[0][name]} | {counts[1][name]} |" for name, meaning in _MEANINGS.items()]
    return "\n".join(["| what comes of a type | one rank | two ranks |", "|---|---|---|", *rows])


def main(page: Path) -> None:
    with TemporaryDirectory() as folder:
        two = tried_on_two_ranks(TRIED, Path(folder), partial(launched, timeout_s=3600))
    types = {}
    for kind in TRIED:
        with TemporaryDirectory() as folder:
            types[kind] = [reason_of(tried(kind, Path(folder))), reason_of(two[kind])]
    lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(both)}" for kind, both in types.items())
    RESULTS.write_text(
        f'{{"transformers": "{transformers.__version__}", "types": {{\n{lines}\n}}}}\n', encoding="utf-8"
    )
    write_between(page, BEGIN, END, table())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
