"""A training step's forward and backward passes: one row per turn, one per episode, shared prefixes, packed.

    OMP_NUM_THREADS=1 python benchmarks/train_step/bench.py speed --output benchmarks/train_step/speed.json
    OMP_NUM_THREADS=1 python benchmarks/train_step/bench.py vocabulary --output benchmarks/train_step/vocabulary.json

``speed``: groups of eight episodes with a prompt of 128 tokens in common and turns of 40 tokens, 16 of them sampled.
All layouts train on the same tokens with the same weights. ``turns`` makes a row of every turn, as many trainers do:
the row holds the whole conversation up to that turn, and only that turn's tokens train. The layouts are measured
alternately in one process. The results are medians of processor seconds (other work on the machine disturbs them
least), their ratios to ``turns``, the number of tokens forwarded, and each layout's peak memory above that of the
model, measured in a separate process.

``vocabulary``: one row of 8,192 tokens, 4,096 of them sampled, and a vocabulary of 150,000 tokens. The results are the
peak memory of a step with the head in pieces, the memory of the logits alone, and the peak with a small vocabulary.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym.credit.table import Ints
from agentgym.trainers.data.batch import Batch, build_batches
from agentgym.trainers.data.layout import PaddedRows, recomputed
from agentgym.trainers.data.row import Row
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs
from agentgym.trainers.losses.loss import policy_loss, token_logprobs
from agentgym.trainers.models.precision import use_fused_attention
from agentgym.trainers.models.products import use_faster_products

GROUP_SIZE, PROMPT, TURN, SAMPLED = 8, 128, 40, 16
ARMS = ("turns", "rows", "prefix", "packed")
MEASURED = (("0.7M", 5), ("0.7M", 10), ("0.7M", 20), ("19M", 10))
"""Models, and turns of an episode."""
MODELS: dict[str, dict[str, int]] = {
    "0.7M": {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
    "19M": {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4},
}


def build_model(name: str, vocab_size: int = 1024) -> Any:
    """Return a Qwen3-shaped model with weights from a seed, and with the trainer's attention."""
    torch.manual_seed(0)
    sizes = MODELS[name]
    head_dim = sizes["hidden_size"] // sizes["num_attention_heads"]
    model = Qwen3ForCausalLM(
        Qwen3Config(
            **sizes,
            vocab_size=vocab_size,
            intermediate_size=3 * sizes["hidden_size"],
            head_dim=head_dim,
            max_position_embeddings=1 << 14,
            tie_word_embeddings=True,
        )
    )
    use_fused_attention(model)
    use_faster_products(model)
    return model


def episodes(num_turns: int, vocab_size: int = 1024) -> list[Row]:
    """Return a group of episodes with a common prompt."""
    generator = torch.Generator().manual_seed(num_turns)
    prompt = torch.randint(1, vocab_size, (PROMPT,), generator=generator).tolist()
    turns = [-1] * PROMPT + [at if n < SAMPLED else -1 for at in range(num_turns) for n in range(TURN)]
    said = torch.randint(1, vocab_size, (GROUP_SIZE, TURN * num_turns), generator=generator).tolist()
    return [sample_of((*prompt, *said[member]), np.array(turns), member) for member in range(GROUP_SIZE)]


def sample_of(token_ids: tuple[int, ...], turns: Ints, member: int) -> Row:
    """Return a training row with the tokens of a turn, and an advantage that differs by member."""
    mask = turns >= 0
    columns = {"advantage": mask * (member - 3.5), "logprob_rollout": mask * -6.9, "turn_index": turns}
    return Row.of(token_ids, mask, columns, trajectory=member)


def row_per_turn(samples: list[Row]) -> list[Row]:
    """Return a row for every turn, with everything before it as context."""
    rows = []
    for member, sample in enumerate(samples):
        turns = sample.columns["turn_index"]
        for turn in range(max(turns) + 1):
            own = sample.positions[turns == turn]
            end = 1 + int(own[-1])
            alone = np.full(end, -1)
            alone[own] = turn
            rows.append(sample_of(sample.token_ids[:end], alone, member))
    return rows


def batches_of(arm: str, num_turns: int) -> list[Batch]:
    """Return the micro-batches of an arm, with the weights of the whole update."""
    samples = episodes(num_turns)
    if arm == "turns":
        return build_batches(row_per_turn(samples), layout="rows")
    return build_batches(samples, layout=arm)  # type: ignore[arg-type]


def backward(model: Any, batches: list[Batch]) -> float:
    """Compute the gradients of a step and return the loss."""
    total = 0.0
    for batch in batches:
        logprob, entropy = token_logprobs(model, batch, 1.0)
        scores = BatchLogprobs(logprob=logprob, logprob_old=logprob.detach(), entropy=entropy)
        loss = policy_loss(scores, batch, LossConfig()).loss
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def forwarded(batches: list[Batch]) -> int:
    """Return the tokens forwarded, padding included."""
    layouts = [batch.layout for batch in batches]
    prefixes = sum(layout.prefix_ids.numel() for layout in layouts if isinstance(layout, PaddedRows))
    return prefixes + sum(layout.input_ids.numel() for layout in layouts)


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def measure(name: str, num_turns: int, num_rounds: int) -> list[dict[str, Any]]:
    """Return one row per arm."""
    model = build_model(name)
    batches = {arm: batches_of(arm, num_turns) for arm in ARMS}
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    gradients = {}
    for number in range(num_rounds + 1):
        for arm in ARMS:
            model.zero_grad()
            start = time.process_time()
            backward(model, batches[arm])
            if number:  # the first round warms up
                seconds[arm].append(time.process_time() - start)
            else:
                gradients[arm] = gradient(model)
    scale = gradients["turns"].abs().max().item()
    return [
        {
            "model": name,
            "num_turns": num_turns,
            "arm": arm,
            "num_forwarded": forwarded(batches[arm]),
            "cpu_s": round(statistics.median(seconds[arm]), 4),
            "times_faster_than_turns": round(statistics.median(seconds["turns"]) / statistics.median(seconds[arm]), 2),
            "gradient_differs_by": (gradients[arm] - gradients["turns"]).abs().max().item() / scale,
            "peak_mb": in_process_of_its_own("peak", name, arm, str(num_turns)),
        }
        for arm in ARMS
    ]


def in_process_of_its_own(*arguments: str) -> float:
    """Run this script with some arguments and return its output."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout.strip().split("\n")[-1])


def most_memory_mb() -> float:
    """Return the peak memory of this process since its program began; ru_maxrss would include its parent's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def peak(name: str, arm: str, num_turns: int) -> float:
    """Return the MB that a step takes in addition to the memory before it."""
    model, batches = build_model(name), batches_of(arm, num_turns)
    before = most_memory_mb()
    backward(model, batches)
    return round(most_memory_mb() - before, 1)


def vocabulary_step(vocab_size: int, recompute: bool) -> float:
    """Return the MB that a step over one row of 8,192 tokens takes in addition to the memory before it."""
    model = build_model("0.7M", vocab_size)
    mask = [0] + [1, 0] * 4095 + [1]
    ids = torch.randint(1, vocab_size, (8192,), generator=torch.Generator().manual_seed(0)).tolist()
    batches = build_batches([sample_of(tuple(ids), np.array(mask) - 1, 0)], layout="rows")
    before = most_memory_mb()
    if recompute:
        with recomputed(model):
            backward(model, batches)
    else:
        backward(model, batches)
    return round(most_memory_mb() - before, 1)


def origin() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "machine": f"{platform.machine()}, {cpu}",
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "load_average": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "vocabulary", "peak", "vocabulary-step"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="for speed")
    parser.add_argument("--turns", nargs="+", type=int, default=[5, 10, 20], help="of an episode, for speed")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "peak":
        name, arm, num_turns = options.rest
        print(peak(name, arm, int(num_turns)))
        return
    if options.what == "vocabulary-step":
        vocab_size, recompute = options.rest
        print(vocabulary_step(int(vocab_size), recompute == "recompute"))
        return
    if options.what == "speed":
        wanted = [(name, turns) for name, turns in MEASURED if name in options.models and turns in options.turns]
        rows = [row for name, turns in wanted for row in measure(name, turns, options.rounds)]
    else:
        rows = [
            {
                "vocabulary": size,
                "activations": how,
                "peak_mb": in_process_of_its_own("vocabulary-step", str(size), how),
                "logits_alone_mb": round(4096 * size * 4 / 2**20),
                "head_and_its_gradient_mb": round(2 * size * 128 * 4 / 2**20),
            }
            for size in (1024, 150_000)
            for how in ("kept", "recompute")
        ]
    for row in rows:
        print(row, flush=True)
    if options.output:
        content = json.dumps(
            {**origin(), "group_size": GROUP_SIZE, "prompt": PROMPT, "turn": TURN, "rows": rows}, indent=1
        )
        options.output.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
