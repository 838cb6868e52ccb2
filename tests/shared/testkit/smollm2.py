"""SmolLM2-135M for tests that train it: a model of its first layers, and bfloat16 where that is faster."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file

from agentgym.trainers.models.processor import multiplies_bfloat16
from agentgym.trainers.models.sources import cached_model

IN_BFLOAT16 = ("engine.dtype=bfloat16", "loss.precision=bfloat16") if multiplies_bfloat16() else ()
"""Settings of a run; none where the processor has no instructions for it."""
LEARNS_FAST = ("sft.batch_size=1", "sft.num_epochs=3", "sft.optimizer.lr=1e-3")
"""Settings of a run that teach a few conversations to a shallow model."""


def assert_the_policy_was_sampled(row: Mapping[str, float]) -> None:
    """Assert that a step's log-probabilities from engine and trainer are those of one model.

    In bfloat16 the mean over the step's tokens is compared: one unlikely token among a hundred may differ by more
    than 0.5, since logits of 30 are 0.125 apart.
    """
    if IN_BFLOAT16:
        assert row["logprob_gap_mean"] < 0.1, row
    else:
        assert row["logprob_gap_max"] < 1e-3, row


def write_shallow_smollm2(out: Path, num_layers: int = 4) -> Path:
    """Write SmolLM2 without its last layers, with its own tokenizer and template; return the folder.

    Its text makes no sense before it is trained. :data:`LEARNS_FAST` teaches it a few conversations.
    """
    whole = cached_model("smollm2")
    assert whole is not None, "needs SmolLM2 in the cache: agentgym model import smollm2"
    shutil.copytree(whole, out)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps({**config, "num_hidden_layers": num_layers}), encoding="utf-8")
    weights = {
        name: weight
        for name, weight in load_file(out / "model.safetensors").items()
        if not (layer := re.search(r"layers\.(\d+)\.", name)) or int(layer.group(1)) < num_layers
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out
