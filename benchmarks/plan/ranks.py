"""Memory and traffic of a rank in an update of SmolLM2-135M by number of ranks, compared with the plan.

    python benchmarks/plan/ranks.py                         -> ranks.json and ranks.md
    python benchmarks/plan/ranks.py --ranks 2 --shape tiny --out /tmp/ranks.json

Each number of ranks runs in a process of its own, as rank 0 of torch's ``fake`` process group: the model is really
sharded and the update really made, but collectives send nothing, so the numbers that it computes mean nothing. Counted
are the bytes of live tensors (not those of the allocator, kernels or Python) and the bytes that collectives would send.
Weights are random. The engine and the copy that it samples from are left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.credit.credited import credit_columns
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.data.samples import FilteredGroup, filter_groups
from agentgym.trainers.distributed.config import RanksConfig
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.distributed.sharding import shard
from agentgym.trainers.models.decoder import Sizes, count_weights
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.planning.footprint import footprint
from agentgym.trainers.recipes import load_recipe
from agentgym.types import TurnCredit

HERE = Path(__file__).parent
SHAPES = {
    "smollm2": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
}
TOKENS_PER_MICROBATCH, PROMPT, SAMPLED = 1024, 32, 224
"""Most tokens are sampled, as the plan assumes: the head is applied to sampled tokens alone."""
NUM_GROUPS, GROUP_SIZE = 4, 4
COUNTED = ("weights", "gradients", "optimizer", "gathered", "activations", "logits")
"""Parts of the plan that an update needs."""


class FakeRanks(Ranks):
    """Rank 0 of several ranks whose objects all equal its own."""

    def gathered(self, value: Any) -> list[Any]:
        return [copy.deepcopy(value) for _ in range(self.count)]


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of live tensors, and those that collectives would receive or send."""

    def __init__(self, num_ranks: int) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.travelled = 0.0
        self._share = (num_ranks - 1) / num_ranks
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = str(function)
        if "_allgather_base_" in name or "_reduce_scatter_base_" in name:
            output, given = args[:2]
            self.travelled += self._share * max(output.nbytes, given.nbytes)
            output.zero_()  # a fake collective leaves what lay there, which may not be finite
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.watch(tensor)
        return result

    def watch(self, tensor: torch.Tensor) -> None:
        """Count a tensor's memory for as long as it lives."""
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            weakref.finalize(storage, self._set, key, 0)
        self._set(key, storage.nbytes())

    def resized(self, resize: Callable[..., Any]) -> Callable[..., Any]:
        """Return a storage's ``resize_`` that is counted: FSDP frees gathered weights by it."""

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, size)
            return result

        return counted

    def _set(self, key: int, size: int) -> None:
        self.live += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        if not size:
            del self._sizes[key]
        self.peak = max(self.peak, self.live)


def made_groups() -> list[FilteredGroup]:
    """Return groups of rewarded one-turn episodes of equal length."""
    sys.path.append(str(HERE.parents[1] / "tests" / "shared"))
    from testkit.made_groups import group, trajectory, turn

    groups, credit = [], []
    for ordinal in range(NUM_GROUPS):
        members = [trajectory([turn([3] * PROMPT, [5 + member] * SAMPLED)]) for member in range(GROUP_SIZE)]
        groups.append(group(*members, ordinal=ordinal))
        credit.append(
            tuple((TurnCredit(shaped_reward=0.0, return_to_go=0.0, advantage=m - 1.5),) for m in range(GROUP_SIZE))
        )
    return filter_groups(groups, credit_columns(groups, credit), 1, "advantage")


def measure(num_ranks: int, shape: str) -> dict[str, Any]:
    """Return what one rank holds and sends in two updates."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks = FakeRanks(0, num_ranks, RanksConfig(), None)
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=512, tie_word_embeddings=True)
    model: Any = shard(LlamaForCausalLM(config), ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = apply_overrides(
        load_recipe("smollm2-guess"),
        [f"loss.tokens_per_microbatch={TOKENS_PER_MICROBATCH}", "model.max_context_tokens=512"],
    )
    sizes, verdicts = Sizes.read(config.to_dict()), made_groups()
    planned = footprint(run, sizes, count_weights(sizes, run.model.lora), num_ranks)
    live = LiveTensors(num_ranks)
    torch.UntypedStorage.resize_ = live.resized(torch.UntypedStorage.resize_)  # type: ignore[method-assign]
    for tensor in (*model.parameters(), *model.buffers()):
        live.watch(tensor.detach())
    travelled = 0.0
    for _ in range(2):  # the optimizer's state is there from the first step on
        before = live.travelled
        with live:
            update_policy(model, optimizer, verdicts, run.loss, temperature=1.0, max_grad_norm=1.0)
        travelled = live.travelled - before
    num_parameters = sum(p.numel() for p in model.parameters())
    passes = ranks.share(NUM_GROUPS * GROUP_SIZE * (PROMPT + SAMPLED) // TOKENS_PER_MICROBATCH)
    return {
        "ranks": num_ranks,
        "shape": shape,
        "num_parameters": num_parameters,
        "peak_bytes": live.peak,
        "planned_bytes": sum(getattr(planned, name) for name in COUNTED),
        "planned": {name: getattr(planned, name) for name in COUNTED},
        "travelled_bytes": travelled,
        # weights are gathered for the forward and the backward pass, gradients added up after it
        "travelled_by_arithmetic": 3 * 4 * num_parameters * (num_ranks - 1) / num_ranks * len(passes),
    }


def table(rows: list[dict[str, Any]], machine: dict[str, str]) -> str:
    """Return the page."""
    lines = [
        "# What a rank holds and sends",
        "",
        f"An update of {NUM_GROUPS * GROUP_SIZE} rows of {PROMPT + SAMPLED} tokens, {TOKENS_PER_MICROBATCH} tokens a "
        "micro-batch, float32, SmolLM2-135M's shape. `python benchmarks/plan/ranks.py`: rank 0 of a simulated process "
        "group; live tensors at the peak, and what collectives would send.",
        "",
        "| ranks | peak, MiB | by plan | plan / peak | weights, gradients, optimizer | sent, MiB | by arithmetic |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        held = sum(row["planned"][name] for name in ("weights", "gradients", "optimizer"))
        mib = {key: row[key] / 2**20 for key in row if key.endswith("bytes") or key == "travelled_by_arithmetic"}
        lines.append(
            f"| {row['ranks']:,} | {mib['peak_bytes']:,.0f} | {mib['planned_bytes']:,.0f} "
            f"| {row['planned_bytes'] / row['peak_bytes']:.2f} | {held / 2**20:,.1f} "
            f"| {mib['travelled_bytes']:,.0f} | {mib['travelled_by_arithmetic']:,.0f} |"
        )
    lines += ["", f"{machine['machine']}, {machine['date']}, commit {machine['commit']}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 8, 64, 1024])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--out", type=Path, default=HERE / "ranks.json")
    parser.add_argument("--one", action="store_true", help="measure one number of ranks in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.ranks[0], arguments.shape)))
        return
    rows = []
    for num_ranks in arguments.ranks:
        command = [sys.executable, __file__, "--one", "--ranks", str(num_ranks), "--shape", arguments.shape]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
    }
    arguments.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    arguments.out.with_suffix(".md").write_text(table(rows, machine), encoding="utf-8")


if __name__ == "__main__":
    main()
