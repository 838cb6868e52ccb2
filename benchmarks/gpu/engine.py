"""The embedded engine on a GPU, and a run trained with it: one call, no network, results in one file.

    python benchmarks/gpu/engine.py --out benchmarks/gpu/engine.json

1. Sampled tokens per second at batch 1 to 512 for a 0.5B- and a 1.5B-shaped Qwen2.5 with random weights in bfloat16,
   with steps of fixed shape (CUDA graphs) and with ragged ones. They are compared with the limit of the memory's
   bandwidth: every step reads all weights and the keys and values of all rows once. The bandwidth is that of a copy,
   measured here.
2. ``household-smoke`` or another recipe from a warm start to its evaluation, with its learning curve.
3. Where vLLM can be imported: its tokens per second for the same shapes, from random weights too.

``--device cpu --shapes tiny`` tries the script on a CPU; its numbers say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentgym.engine import SamplingParams
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.train import train

NUM_PROMPT_TOKENS = 64
SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "1.5B": {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
"""Published shapes of Qwen2.5-0.5B and -1.5B; ``tiny`` is for trying the script."""


def build(shape: str, device: torch.device) -> Any:
    """Return a model of this shape with random weights, in bfloat16."""
    torch.manual_seed(0)
    config: Any = Qwen2Config(**SHAPES[shape], tie_word_embeddings=True, eos_token_id=None, pad_token_id=0)
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(config)
    return model.to(torch.bfloat16).eval()


def synchronize(device: torch.device) -> None:
    """Wait for all launched kernels."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Return the bytes per second that a copy reads and writes."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    synchronize(device)
    start, num_copies = time.perf_counter(), 20
    for _ in range(num_copies):
        target.copy_(source)
    synchronize(device)
    return 2 * num_bytes * num_copies / (time.perf_counter() - start)


def step_bytes(model: Any, num_rows: int, num_attended: float) -> float:
    """Return the bytes that one decoding step must read: all weights once, and each row's keys and values."""
    sizes = model.config
    head_dim = sizes.hidden_size // sizes.num_attention_heads
    of_token = 2 * sizes.num_hidden_layers * sizes.num_key_value_heads * head_dim * 2
    of_weights = 2 * sum(parameter.numel() for parameter in model.parameters())
    return float(of_weights + num_rows * num_attended * of_token)


async def sample_all(engine: TorchEngine, vocab_size: int, num_rows: int, num_new: int) -> None:
    """Sample one completion per row; none stops early."""
    rows = torch.randint(vocab_size, (num_rows, NUM_PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(max_new_tokens=num_new, seed=seed) for seed in range(num_rows)]
    await asyncio.gather(*(engine.generate(row, p) for row, p in zip(rows.tolist(), params, strict=True)))


def engine_speed(model: Any, num_rows: int, num_new: int, *, is_fixed: bool) -> float:
    """Return sampled tokens per second, prompts included in the time, after a round that records the graphs."""
    engine = TorchEngine(
        model,
        num_slots=num_rows,
        max_context_tokens=NUM_PROMPT_TOKENS + num_new,
        max_prefill_tokens=16384,
        fixed_decode=is_fixed,
    )
    rounds: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        asyncio.run(sample_all(engine, model.config.vocab_size, num_rows, num_new))
        rounds.append(time.perf_counter() - start)
    asyncio.run(engine.close())
    return num_rows * num_new / min(rounds[1:])


def measure_engine(options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Return the rows of the first table."""
    bandwidth = copy_bandwidth(device, options.copy_mb << 20)
    rows: list[dict[str, Any]] = []
    for shape in options.shapes:
        model = build(shape, device)
        for num_rows in options.batch:
            attended = NUM_PROMPT_TOKENS + options.new_tokens / 2
            limit = num_rows * bandwidth / step_bytes(model, num_rows, attended)
            fixed, ragged = (engine_speed(model, num_rows, options.new_tokens, is_fixed=on) for on in (True, False))
            row = {"shape": shape, "batch": num_rows, "fixed": fixed, "ragged": ragged, "bandwidth_limit": limit}
            rows.append(row | {"share_of_limit": fixed / limit})
            print(json.dumps(rows[-1]), flush=True)
        del model
    return rows


def measure_run(options: argparse.Namespace) -> dict[str, Any]:
    """Train a recipe and return its curve."""
    with tempfile.TemporaryDirectory() as folder:
        config = apply_overrides(load_recipe(options.recipe), options.overrides)
        start = time.perf_counter()
        result = train(config, Path(folder) / "run")
        wall_s = time.perf_counter() - start
        steps = [row for row in read_json_lines(Path(folder) / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    names = ("success", "tokens_per_s", "logprob_gap_max")
    return {
        "recipe": options.recipe,
        "overrides": options.overrides,
        "success_before": result.success_before,
        "success_after": result.success_after,
        "wall_s": wall_s,
        **{name: [row[name] for row in steps] for name in names},
    }


def measure_vllm(options: argparse.Namespace) -> list[dict[str, Any]] | str:
    """Measure vLLM in this process on the same shapes, or return the reason why it cannot run."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed here"
    from vllm import LLM
    from vllm import SamplingParams as VllmParams

    rows: list[dict[str, Any]] = []
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            build(shape, torch.device("cpu")).save_pretrained(folder)
            llm = LLM(
                folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1024, enable_prefix_caching=False
            )
        params = VllmParams(max_tokens=options.new_tokens, ignore_eos=True, detokenize=False)
        for num_rows in options.batch:
            ids = torch.randint(SHAPES[shape]["vocab_size"], (num_rows, NUM_PROMPT_TOKENS)).tolist()
            speeds = []
            for _ in range(3):
                start = time.perf_counter()
                llm.generate([{"prompt_token_ids": row} for row in ids], params, use_tqdm=False)
                speeds.append(num_rows * options.new_tokens / (time.perf_counter() - start))
            rows.append({"shape": shape, "batch": num_rows, "vllm": max(speeds[1:])})
            print(json.dumps(rows[-1]), flush=True)
        del llm
    return rows


def attempt(what: str, measure: Callable[[], Any]) -> Any:
    """Return a part's result, or its error, so that a part that fails does not stop the others."""
    try:
        return measure()
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {error}", flush=True)
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.5B", "1.5B"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16, 64, 128, 256, 512])
    parser.add_argument("--new-tokens", type=int, default=192)
    parser.add_argument("--copy-mb", type=int, default=1024)
    parser.add_argument("--recipe", default="household-demo")
    parser.add_argument("--overrides", nargs="*", default=[], help="of the recipe, as in num_steps=50")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("engine.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "engine": attempt("engine", lambda: measure_engine(options, device)),
        "run": attempt("run", lambda: measure_run(options)),
        "vllm": attempt("vllm", lambda: measure_vllm(options)),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
