"""Ways to make a training step cheaper, measured on a CPU: heads over the vocabulary, and compiled layers.

    OMP_NUM_THREADS=1 python benchmarks/train_step/options.py head --output benchmarks/train_step/head.json
    OMP_NUM_THREADS=1 python benchmarks/train_step/options.py compile --output benchmarks/train_step/compile.json

Seconds are processor seconds, children included, which other work on the machine affects least.

``head``: from hidden states to the log-probabilities of given tokens and back, at SmolLM2's vocabulary. Each way runs
in a process of its own: the median of the rounds, and the most memory it took over what was there before. ``pieces``
is the trainer's own, which also gives entropies; ``whole`` is the same with all logits at once. ``torch`` and ``torch
chunked`` are ``torch.nn.functional.linear_cross_entropy``, which gives no entropies; ``sum`` weighs all tokens alike.
Liger's kernel needs Triton and a GPU, and was not run.

``compile``: a step's forward and backward passes over rows of several lengths with and without ``loss.compile``, and
the time until the first compiled step was made, less that of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bench import backward, build_model, episodes, most_memory_mb, origin
from transformers import LlamaConfig, LlamaForCausalLM

from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.losses import config as loss_config
from agentgym.trainers.models import compiled as compiled_layers
from agentgym.trainers.models.compiled import compiled
from agentgym.trainers.models.head_logprobs import head_logprobs
from agentgym.trainers.models.precision import use_fused_attention
from agentgym.trainers.models.products import use_faster_products

HEADS = ("pieces", "whole", "torch", "torch chunked", "torch chunked, sum")
SIZES = {"smollm2": (2048, 576, 49_152), "tiny": (64, 16, 300)}
"""Tokens, hidden size, vocabulary."""
MODELS = ("0.7M", "smollm2, 8 layers")


def head_loss(name: str, states: torch.Tensor, head: torch.nn.Linear, targets: torch.Tensor) -> torch.Tensor:
    """Return a weighted sum of log-probabilities, as a policy loss is."""
    weights = torch.linspace(-1, 1, len(targets))
    if name in ("pieces", "whole"):
        logprobs, _ = head_logprobs(head, states, targets, 1.0)
        return (logprobs * weights).sum()
    options = torch.nn.LinearCrossEntropyOptions() if "chunked" in name else None
    if name.endswith("sum"):
        return F.linear_cross_entropy(states, head.weight, targets, reduction="sum", options=options)
    losses = F.linear_cross_entropy(states, head.weight, targets, reduction="none", options=options)
    return (losses * -weights).sum()


def head_row(name: str, size: str, num_rounds: int) -> dict[str, Any]:
    """Measure one way, in this process."""
    num_tokens, hidden, vocab = SIZES[size]
    torch.manual_seed(0)
    head = torch.nn.Linear(hidden, vocab, bias=False)
    states = torch.randn(num_tokens, hidden, requires_grad=True)
    targets = torch.randint(vocab, (num_tokens,))
    if name == "whole":
        loss_config.MAX_LOGITS = num_tokens * vocab  # type: ignore[misc]

    def step() -> None:
        head.zero_grad()
        states.grad = None
        head_loss(name, states, head, targets).backward()  # type: ignore[no-untyped-call]

    before = most_memory_mb()
    seconds = [processor_seconds(step) for _ in range(num_rounds)]
    assert states.grad is not None and head.weight.grad is not None
    return {
        "way": name,
        "cpu_s": round(statistics.median(seconds), 3),
        "peak_mb": round(most_memory_mb() - before),
        "gradient_norm": round(states.grad.norm().item() + head.weight.grad.norm().item(), 4),
    }


def compile_row(name: str, num_rounds: int) -> dict[str, Any]:
    """Measure one model with and without compiling, in this process."""
    if name == "0.7M":
        model, room = build_model(name), 8192
    else:
        sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
        shape = LlamaConfig(vocab_size=49_152, num_hidden_layers=8, tie_word_embeddings=True, **sizes)
        model, room = LlamaForCausalLM(shape), 1024
    use_fused_attention(model)
    use_faster_products(model)
    batches = build_batches(episodes(5), layout="rows", tokens_per_microbatch=room)

    def plain() -> None:
        model.zero_grad()
        backward(model, batches)

    def fast() -> None:
        with compiled(model):
            plain()

    plain()
    eager_s = statistics.median(processor_seconds(plain) for _ in range(num_rounds))
    first_s = processor_seconds(fast)
    compiled_s = statistics.median(processor_seconds(fast) for _ in range(num_rounds))
    return {
        "model": name,
        "eager_cpu_s": round(eager_s, 3),
        "compiled_cpu_s": round(compiled_s, 3),
        "times_faster": round(eager_s / compiled_s, 2),
        "compiling_cpu_s": round(first_s - compiled_s, 1),
        "steps_until_it_pays": round((first_s - compiled_s) / (eager_s - compiled_s)) if eager_s > compiled_s else None,
    }


def processor_seconds(work: Callable[[], None]) -> float:
    """Return the processor time that work takes in this process and its children."""
    start = time.process_time() + children_s()
    work()
    return time.process_time() + children_s() - start


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_a_process(*arguments: str) -> dict[str, Any]:
    """Return the row that this script prints for some arguments, without what was compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, __file__, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    row: dict[str, Any] = json.loads(done.stdout.strip().split("\n")[-1])
    return row


def main() -> None:
    """Measure, print a row each, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["head", "compile"])
    parser.add_argument("--size", choices=list(SIZES), default="smollm2")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", default=compiled_layers.BACKEND, help="of torch.compile")
    parser.add_argument("--only", default="", help="measure one way or model in this process")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    compiled_layers.BACKEND = options.backend
    if options.only:
        is_head = options.what == "head"
        made = head_row(options.only, options.size, options.rounds) if is_head else None
        print(json.dumps(made or compile_row(options.only, options.rounds)))
        return
    common = ("--size", options.size, "--rounds", str(options.rounds), "--backend", options.backend)
    rows = []
    for name in HEADS if options.what == "head" else options.models:
        rows.append(in_a_process(options.what, "--only", name, *common))
        print(rows[-1], flush=True)
    if options.output:
        options.output.write_text(json.dumps({**origin(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
