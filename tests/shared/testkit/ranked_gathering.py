"""A program of one rank: files for servers, and their evidence, are gathered from a sharded model.

They are compared with those of a whole model on one rank. ``python ranked_gathering.py FOLDER``
"""

from __future__ import annotations

import copy
import sys
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file

from agentgym.trainers.distributed.copies import move_whole
from agentgym.trainers.distributed.ranks import Ranks, join_ranks
from agentgym.trainers.distributed.sharding import shard_from_first
from agentgym.trainers.engines.facts import witness
from agentgym.trainers.engines.vllm.gathered import GatheredWeights
from agentgym.trainers.engines.vllm.weights import probe_ids
from agentgym.trainers.kinds import Precision
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora, never_trained, save_weights
from agentgym.trainers.types import CausalLM
from testkit.ranked_lending import change
from testkit.tiny_models import tiny_model

ENDS = ("embed_tokens", "q_proj", "lm_head")
CASES = (
    ("qwen3", LoraSettings(), False),
    ("qwen2", LoraSettings(rank=4), False),
    ("qwen2", LoraSettings(rank=4), True),
    ("llama3-rope-untied", LoraSettings(rank=3, target_modules=ENDS), False),
    ("llama3-rope-untied", LoraSettings(rank=3, target_modules=ENDS), True),
)
"""Architectures, adapters, and whether these are swapped."""
DTYPES = ("float32", "bfloat16")


def compare(family: str, lora: LoraSettings, swaps: bool, precision: Precision, ranks: Ranks, folder: Path) -> None:
    model = add_lora(cast(CausalLM, tiny_model(family)), lora, 0)
    whole, target = copy.deepcopy(model), never_trained(copy.deepcopy(model)) if ranks.is_main else None
    sharded = shard_from_first(model if ranks.is_main else None, ranks, precision)
    weight_sync = "lora" if swaps else "folder"
    gathered = GatheredWeights(sharded, target, weight_sync, is_sender=ranks.is_main)
    save: Any = (lambda at, dtypes: whole.save_pretrained(at)) if swaps else partial(save_weights, whole)
    compute_checksum = witness(whole, has_adapters=swaps)
    for version, dtypes in enumerate((DTYPES, DTYPES[:1], DTYPES[1:])):
        change(sharded)
        change(whole)
        ids = probe_ids(version, whole.config.vocab_size)
        gathered.gather(ids, dtypes)
        expected = compute_checksum(ids, dtypes)
        if target is not None:
            frozen = [weight for name, weight in target.named_parameters() if "mlp" in name and "lora" not in name]
            assert frozen and sum(weight.numel() for weight in frozen) == 0
            found = gathered.compute_checksum(ids, dtypes)
            assert found.sums == expected.sums and list(found.sums) == list(dtypes), (family, lora)
            for dtype in dtypes:
                made, wanted = (torch.tensor(one.logprobs[dtype]) for one in (found, expected))
                # FSDP rounds weights before it gathers them, if matrices are multiplied in bfloat16
                is_rounded = precision == "bfloat16" and dtype == "float32"
                assert (made - wanted).abs().mean() <= (0.1 if is_rounded else 0), (family, lora, dtype)
            compare_files(gathered.save, save, folder / f"{family}-{swaps}-{precision}-{version}", dtypes)
    move_whole(sharded, target)
    state: dict[str, Any] = whole.state_dict()
    for name, tensor in target.state_dict().items() if target is not None else ():
        assert torch.equal(tensor, state[name]), name


def compare_files(save: Any, save_whole: Any, folder: Path, dtypes: tuple[str, ...]) -> None:
    """Compare all files that were written, bit for bit."""
    for name, write in (("gathered", save), ("whole", save_whole)):
        (folder / name).mkdir(parents=True)
        write(folder / name, dtypes)
    names = [sorted(path.name for path in (folder / name).iterdir()) for name in ("gathered", "whole")]
    assert names[0] == names[1]
    for name in names[0]:
        one, two = folder / "gathered" / name, folder / "whole" / name
        if one.suffix != ".safetensors":
            assert one.read_bytes() == two.read_bytes(), name
            continue
        made, wanted = load_file(one), load_file(two)
        assert made and list(made) == list(wanted)
        for key, tensor in wanted.items():
            assert made[key].dtype == tensor.dtype and torch.equal(made[key], tensor), key


def main(folder: Path) -> None:
    ranks = join_ranks()
    for family, lora, swaps in CASES:
        compare(family, lora, swaps, "float32", ranks, folder)
    compare("qwen2", LoraSettings(rank=4), False, "bfloat16", ranks, folder)
    ranks.leave()
    print("the same")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
