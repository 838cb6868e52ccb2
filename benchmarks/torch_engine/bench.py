"""Sampled tokens per second of the torch engine and of ``model.generate``, measured alternately in one process.

    OMP_NUM_THREADS=1 python benchmarks/torch_engine/bench.py --output benchmarks/torch_engine/results.json

Both sample the same number of tokens at temperature 1 for the same prompts, none stops early. Rounds of the two
alternate, so that whatever else the machine does hits both, and medians are compared. ``products`` are the model's
matrix products alone, without attention, norms and sampling, by oneDNN where that is faster: no engine that computes in
float32 is faster than these.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym.engine import SamplingParams
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.products import MIN_PACKED_PRODUCTS, has_faster_products, packed, product

NUM_PROMPT_TOKENS = 24
NUM_TURN_TOKENS = 8
NUM_CONVERSATIONS = 16
BATCH_SIZES = (1, 16, 64)
MODELS: dict[str, dict[str, Any]] = {
    "4.2M": {"vocab_size": 4096, "hidden_size": 256, "head_dim": 64, "intermediate_size": 768},
    "0.8M": {"vocab_size": 512, "hidden_size": 128, "head_dim": 32, "intermediate_size": 384},
}


def build_model(sizes: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    fixed: dict[str, Any] = {
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.06,
        "tie_word_embeddings": True,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    model: Any = Qwen3ForCausalLM(Qwen3Config(**{**fixed, **sizes}))
    return model.eval()


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def sample_all(engine: TorchEngine, prompts: list[list[int]], num_new_tokens: int) -> None:
    """Sample one completion of each prompt, all at a time."""

    async def sample() -> None:
        requests = (
            engine.generate(ids, SamplingParams(max_new_tokens=num_new_tokens, seed=seed))
            for seed, ids in enumerate(prompts)
        )
        await asyncio.gather(*requests)

    asyncio.run(sample())


def fastest_product(weight: torch.Tensor, state: torch.Tensor) -> tuple[Callable[..., Any], torch.Tensor, torch.Tensor]:
    """Return the function that multiplies them as the engine does, the matrix that it takes, and the state."""
    if has_faster_products() and state.numel() * weight.shape[0] >= MIN_PACKED_PRODUCTS:
        return product, packed(weight.detach()), state
    return torch.nn.functional.linear, weight, state


def measure(
    model: Any, batch_size: int, num_rounds: int, num_new_tokens: int, dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """Medians over ``num_rounds`` alternating rounds, after one round of each that is not counted."""
    generator = torch.Generator().manual_seed(batch_size)
    prompts = torch.randint(model.config.vocab_size, (batch_size, NUM_PROMPT_TOKENS), generator=generator)
    engine = TorchEngine(model, num_slots=64, dtype=dtype)

    def run_engine() -> None:
        sample_all(engine, prompts.tolist(), num_new_tokens)

    @torch.no_grad()
    def run_generate() -> None:
        attention_mask = torch.ones_like(prompts)
        out = model.generate(
            prompts, attention_mask=attention_mask, max_new_tokens=num_new_tokens, do_sample=True, top_k=0
        )
        assert out.shape[1] == NUM_PROMPT_TOKENS + num_new_tokens

    @torch.no_grad()
    def run_products() -> None:
        for _ in range(num_new_tokens):
            for multiply, weight, state in products:
                multiply(state, weight)

    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    products = [fastest_product(weight, torch.randn(batch_size, weight.shape[1])) for weight in weights]
    run_engine()
    run_generate()
    run_products()
    engine_s, generate_s, products_s = [], [], []
    for _ in range(num_rounds):
        engine_s.append(seconds(run_engine))
        generate_s.append(seconds(run_generate))
        products_s.append(seconds(run_products))
    num_tokens = batch_size * num_new_tokens
    ratios = [slow / fast for slow, fast in zip(generate_s, engine_s, strict=True)]
    return {
        "batch_size": batch_size,
        "engine_tokens_per_s": round(num_tokens / statistics.median(engine_s)),
        "generate_tokens_per_s": round(num_tokens / statistics.median(generate_s)),
        "ratio": round(statistics.median(generate_s) / statistics.median(engine_s), 2),
        "ratio_lowest_round": round(min(ratios), 2),
        "ratio_highest_round": round(max(ratios), 2),
        "products_tokens_per_s": round(num_tokens / statistics.median(products_s)),
        "ratio_of_products": round(statistics.median(generate_s) / statistics.median(products_s), 2),
    }


def measure_turns(model: Any, num_rounds: int, num_turns: int) -> dict[str, Any]:
    """Measure conversations whose earlier turns stay in the cache, and the same ones read again in every turn.

    The second kind clears the cache before every turn, like an engine without sessions.
    """
    generator = torch.Generator().manual_seed(num_turns)
    size = (NUM_CONVERSATIONS, num_turns, NUM_PROMPT_TOKENS)
    said = torch.randint(model.config.vocab_size, size, generator=generator).tolist()
    engine = TorchEngine(model, num_slots=NUM_CONVERSATIONS)
    sampled: dict[bool, list[tuple[int, ...]]] = {}

    async def play(keeps: bool) -> None:
        texts: list[list[int]] = [[] for _ in said]
        for turn in range(num_turns):
            if not keeps:
                await engine.update_weights(0)
            for text, observations in zip(texts, said, strict=True):
                text.extend(observations[turn])
            params = SamplingParams(max_new_tokens=NUM_TURN_TOKENS, seed=turn)
            requests = (
                engine.generate(text, params, session_id=f"{number}" if keeps else "")
                for number, text in enumerate(texts)
            )
            for text, completion in zip(texts, await asyncio.gather(*requests), strict=True):
                text.extend(completion.token_ids)
        sampled[keeps] = [tuple(text) for text in texts]
        for number in range(len(said)):
            await engine.release(f"{number}")

    kept_s, again_s = [], []
    for number in range(num_rounds + 1):
        kept, again = (seconds(lambda keeps=keeps: asyncio.run(play(keeps))) for keeps in (True, False))
        # steps of other shapes round otherwise, which moves a token in thousands across a boundary, and all after it
        num_other = sum(kept != again for kept, again in zip(sampled[True], sampled[False], strict=True))
        assert num_other <= NUM_CONVERSATIONS // 8, f"a cache changed the tokens of {num_other} conversations"
        if number:  # the first round warms up
            kept_s.append(kept)
            again_s.append(again)
    ratios = [slow / fast for slow, fast in zip(again_s, kept_s, strict=True)]
    return {
        "num_turns": num_turns,
        "num_tokens": num_turns * (NUM_PROMPT_TOKENS + NUM_TURN_TOKENS),
        "kept_s": round(statistics.median(kept_s), 3),
        "read_again_s": round(statistics.median(again_s), 3),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_lowest_round": round(min(ratios), 2),
        "ratio_highest_round": round(max(ratios), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="alternating rounds per batch size")
    parser.add_argument("--new-tokens", type=int, default=128, help="sampled per row")
    parser.add_argument("--turns", type=int, nargs="*", default=[10, 30], help="lengths of conversations")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the engine alone")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--output", type=Path, help="write the results there as JSON")
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "num_cores": os.cpu_count(),
        "num_threads": 1,
        "dtype": arguments.dtype,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "num_prompt_tokens": NUM_PROMPT_TOKENS,
        "num_new_tokens": arguments.new_tokens,
        "num_rounds": arguments.rounds,
        "models": {},
    }
    for name in arguments.models:
        model = build_model(MODELS[name])
        rows = []
        for batch_size in BATCH_SIZES:
            rows.append(
                measure(model, batch_size, arguments.rounds, arguments.new_tokens, getattr(torch, arguments.dtype))
            )
            print(name, rows[-1], flush=True)
        turns = [measure_turns(model, arguments.rounds, num_turns) for num_turns in arguments.turns]
        print(name, *turns, flush=True)
        num_parameters = sum(p.numel() for p in model.parameters())
        results["models"][name] = {"num_parameters": num_parameters, "rows": rows, "turns": turns}
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
