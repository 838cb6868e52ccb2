"""Training on a GPU: how much of it a step uses, and a run with a model of half a billion weights; results in one file.

    python benchmarks/gpu/train.py --out benchmarks/gpu/train.json
    python benchmarks/gpu/train.py --smoke --out train.json       on a CPU at a tiny size, to see that it runs

1. The optimizer step of a 0.5B- and a 1.5B-shaped Qwen2.5 with random weights: unpacked rows and packed ones
   (FlexAttention), all weights and LoRA, in float32 and with matrices in bfloat16. Groups of eight episodes share a
   prompt. The utilisation counts the model's own operations (:func:`num_operations`), not what is computed twice or
   for padding, against the data sheet's peak, where the device is known, and against one large matrix
   multiplication, measured here.
2. The household recipe from a warm start to its evaluation, with a model of 0.47 billion weights from scratch.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine import SHAPES, attempt, build, measure_run, synchronize

from agentgym.trainers.data.layout import Forest, PaddedRows
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.spread import RankRows
from agentgym.trainers.distributed.sharding import ranks_of
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.phases.optimizer_step import make_optimizer
from agentgym.trainers.phases.update import update_on_rows
from agentgym.trainers.phases.update_step import UpdateStep, batches_for

GROUP_SIZE = 8
PEAK_TFLOPS = {"H100": {"float32": 67, "bfloat16": 989}, "H200": {"float32": 67, "bfloat16": 989}}
"""Data sheets of the SXM boards, dense; float32 without TF32, which torch does not use by default."""
BIG_RUN = [
    *("model.hidden_size=1280", "model.num_layers=24", "model.head_dim=64", "model.initializer_range=0.02"),
    *("sft.optimizer.lr=2e-4", "optimizer.lr=1e-5", "num_steps=50"),
]
SMALL_RUN = ["sft.num_demos=16", "num_steps=1", "eval.num_episodes=4", "loss.layout=packed", "loss.precision=bfloat16"]


def episodes(num_groups: int, prompt: int, num_turns: int, turn: int, vocab_size: int) -> list[Row]:
    """Groups of episodes that share a prompt; half the tokens of a turn are sampled."""
    draw = torch.Generator().manual_seed(0)
    turns = np.array([-1] * prompt + [at if n < turn // 2 else -1 for at in range(num_turns) for n in range(turn)])
    mask = turns >= 0
    samples = []
    for group in range(num_groups):
        shared = torch.randint(1, vocab_size, (prompt,), generator=draw).tolist()
        for member in range(GROUP_SIZE):
            said = torch.randint(1, vocab_size, (turn * num_turns,), generator=draw).tolist()
            samples.append(
                Row.of(
                    (*shared, *said),
                    mask,
                    {
                        "advantage": mask * (member - (GROUP_SIZE - 1) / 2),
                        "logprob_rollout": mask * -11.9,
                        "turn_index": turns,
                    },
                    trajectory=group * GROUP_SIZE + member,
                    ordinal=group,
                )
            )
    return samples


def num_operations(shape: str, rows: Sequence[Sequence[int]], num_sampled: int, *, is_lora: bool) -> float:
    """Additions and multiplications of a step's forward and backward passes over rows of these positions.

    Twice the weights of the layers for each token and pass, the head for sampled tokens alone, and four times the width
    of the queries for each pair of tokens of which one sees the other ("PaLM: Scaling Language Modeling with Pathways",
    appendix B). The backward pass is two of these; under LoRA one, except for attention, since frozen weights need no
    gradient. Adapters are not counted.

    Args:
        rows: of every row, how many tokens each of its tokens sees, itself included.
    """
    sizes = SHAPES[shape]
    hidden, layers = sizes["hidden_size"], sizes["num_hidden_layers"]
    kv_width = hidden // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    of_layer = 2 * hidden * hidden + 2 * hidden * kv_width + 3 * hidden * sizes["intermediate_size"]
    num_tokens, num_pairs = sum(map(len, rows)), sum(map(sum, rows))
    passes = 2 if is_lora else 3
    of_matrices = 2 * passes * (layers * of_layer * num_tokens + hidden * sizes["vocab_size"] * num_sampled)
    return float(of_matrices + 3 * 4 * layers * hidden * num_pairs)


def num_forwarded(layout: PaddedRows | Forest) -> int:
    """Tokens that a micro-batch forwards, padding included."""
    return layout.input_ids.numel() + (layout.prefix_ids.numel() if isinstance(layout, PaddedRows) else 0)


def seen_by_each(samples: Sequence[Row], layout: str) -> list[list[int]]:
    """Return the number of tokens that each token attends to; a shared prefix that is forwarded once counts once."""
    rows = [list(range(1, len(sample.token_ids) + 1)) for sample in samples]
    if layout == "rows":
        return rows
    num_shared = int(samples[0].positions[0])
    return [row if at % GROUP_SIZE == 0 else row[num_shared:] for at, row in enumerate(rows)]


def matmul_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Operations per second of one large matrix multiplication."""
    one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    one @ other
    synchronize(device)
    start, rounds = time.perf_counter(), 10
    for _ in range(rounds):
        one @ other
    synchronize(device)
    return 2 * size**3 * rounds / (time.perf_counter() - start)


def update_on_samples(
    model: Any,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Row],
    config: LossConfig,
    max_grad_norm: float,
) -> None:
    """Make one optimizer step on all samples."""
    rows = RankRows.of(samples, ranks_of(model), is_spread=False)
    step = UpdateStep(model, config, 1.0, None, EntropyHistory())
    update_on_rows(step, optimizer, rows, [[list(range(len(samples)))]], max_grad_norm=max_grad_norm)


def step_seconds(model: Any, samples: Sequence[Row], config: LossConfig, num_rounds: int) -> list[float]:
    """Seconds of whole optimizer steps, the first of which warms up and is left out."""
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-6))
    device = next(model.parameters()).device
    seconds = []
    for _ in range(num_rounds + 1):
        synchronize(device)
        start = time.perf_counter()
        update_on_samples(model, optimizer, samples, config, max_grad_norm=1.0)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def measure_step(shape: str, device: torch.device, options: argparse.Namespace, **arm: str) -> dict[str, Any]:
    """Return one row of the table: a shape, its trained weights, a layout, a precision."""
    is_lora = arm["weights"] == "lora"
    model = add_lora(build(shape, device).float(), LoraSettings(rank=16 if is_lora else 0), 0)
    samples = episodes(options.groups, options.prompt, options.turns, options.turn, SHAPES[shape]["vocab_size"])
    config = LossConfig(
        layout=arm["layout"],  # type: ignore[arg-type]
        precision=arm["precision"],  # type: ignore[arg-type]
        tokens_per_microbatch=options.microbatch,
    )
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    taken = statistics.median(step_seconds(model, samples, config, options.rounds))
    num_sampled = sum(len(sample.positions) for sample in samples)
    operations = num_operations(shape, seen_by_each(samples, arm["layout"]), num_sampled, is_lora=is_lora)
    batches = batches_for(model, samples, config)
    peak = next((row for name, row in PEAK_TFLOPS.items() if name in device_name(device)), None)
    limit = matmul_flops(device, getattr(torch, arm["precision"]), options.matmul)
    return {
        "shape": shape,
        **arm,
        "step_s": taken,
        "row_tokens_per_s": sum(len(sample.token_ids) for sample in samples) / taken,
        "num_row_tokens": sum(len(sample.token_ids) for sample in samples),
        "num_forwarded": sum(num_forwarded(batch.layout) for batch in batches),
        "tflops": operations / taken / 1e12,
        "utilisation": operations / taken / (peak[arm["precision"]] * 1e12) if peak else None,
        "share_of_matmul": operations / taken / limit,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
    }


def measure_steps(options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Return the rows of the first table. A row that fails, perhaps for lack of memory, does not stop the others."""
    rows = []
    for shape in options.shapes:
        for precision in ("bfloat16", "float32"):
            for weights in ("full", "lora"):
                for layout in ("rows", "packed"):
                    arm = {"weights": weights, "layout": layout, "precision": precision}
                    row = attempt(f"{shape} {arm}", lambda s=shape, a=arm: measure_step(s, device, options, **a))
                    rows.append(row if "error" not in row else {"shape": shape, **arm, **row})
                    print(json.dumps(rows[-1]), flush=True)
                    if device.type == "cuda":
                        torch.cuda.empty_cache()
    return rows


def device_name(device: torch.device) -> str:
    """Return the name of the device."""
    return torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="on a CPU, at a tiny size")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.5B", "1.5B"])
    parser.add_argument("--groups", type=int, default=2, help="of eight episodes, a step")
    parser.add_argument("--prompt", type=int, default=512, help="tokens that a group shares")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--turn", type=int, default=160, help="tokens of a turn, half of them sampled")
    parser.add_argument("--microbatch", type=int, default=8192, help="tokens forwarded at a time")
    parser.add_argument("--matmul", type=int, default=8192, help="rows and columns of the matrices of the limit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipe", default="household-demo")
    parser.add_argument("--overrides", nargs="*", default=BIG_RUN, help="of the recipe, as in num_steps=50")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("train.json"))
    options = parser.parse_args()
    if options.smoke:
        options.shapes, options.groups, options.prompt, options.turns, options.turn = ["tiny"], 1, 16, 2, 8
        options.microbatch, options.matmul, options.rounds = 256, 64, 1
        options.recipe, options.overrides = "household-smoke", SMALL_RUN
    device = torch.device("cpu" if options.smoke else "cuda")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "machine": device_name(device),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "settings": {name: value for name, value in vars(options).items() if name != "out"},
        "steps": measure_steps(options, device),
        "run": attempt("run", lambda: measure_run(options)),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
