"""Steps with a model of any type: logits, an update of its weights, saving it and loading it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from agentgym.trainers.models.model import load_model, save_model
from agentgym.trainers.models.tiny import train_tokenizer

TOKENIZER = train_tokenizer(["Count to 2. Count to 3. add: 1 The count is 1."] * 5, 300)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=torch.arange(20, 40)[None], use_cache=False).logits
    return found


def trained(model: Any) -> Any:
    """Return a model after a step of plain gradient descent on one row."""
    ids = torch.arange(20, 40)[None]
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    chosen = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])
    (-chosen.mean()).backward()
    optimizer.step()
    return model


def again(model: Any, folder: Path) -> Any:
    """Return a model as it is loaded after it was saved; its logits are the same."""
    save_model(model, TOKENIZER, folder)
    loaded, _ = load_model(folder, say=lambda line: None)
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-4, rtol=1e-3)
    return loaded


def save_at_odd_addresses(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save a model so that its mapped tensors lie 40 bytes behind the multiples of 64 where torch allocates copies."""
    save_model(model, tokenizer, folder)
    file, fill = folder / "model.safetensors", ""
    tensors = load_file(file)
    while (8 + int.from_bytes(file.read_bytes()[:8], "little")) % 64 != 40:  # the header's length, and the header
        fill += "x" * 8
        save_file(tensors, file, metadata={"format": "pt", "fill": fill})
