"""Sampled tokens per second of the embedded engine and of vLLM on a CPU, each in its process, measured alternately.

    AGENTGYM_VLLM_PYTHON=.venv-vllm OMP_NUM_THREADS=1 python benchmarks/torch_engine/beside_vllm.py

Both compute in float32 on one thread, sample the same number of tokens at temperature 1 for the same prompts, and
return their log-probabilities. vLLM runs in its own process without a server, and reads prompts without chunks and
without a prefix cache. While one samples, the other waits. SmolLM2-135M is measured, too, where it is imported.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from bench import BATCH_SIZES, MODELS, NUM_PROMPT_TOKENS, build_model, cpu_name, sample_all, seconds

from agentgym.errors import UsageError
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.engines.vllm.launch import find_vllm
from agentgym.trainers.models.model import load_model
from agentgym.trainers.models.sources import cached_model

SMOLLM2 = "smollm2"
WORKER = Path(__file__).with_name("in_vllm.py")
MAX_TOKENS = 512


class InVllm:
    """vLLM in a process of its own, which samples when it is asked."""

    def __init__(self, python: str, folder: Path) -> None:
        environment = {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        arguments = [python, str(WORKER), str(folder), str(MAX_TOKENS), str(max(BATCH_SIZES))]
        self._process = subprocess.Popen(
            arguments, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        while self._answer() != "ready":  # what vLLM prints before
            pass

    def sample(self, prompts: list[list[int]], num_new_tokens: int) -> float:
        """Return the seconds that sampling took."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([prompts, num_new_tokens]) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"vLLM ended with exit code {self._process.wait()}")
        return line.strip()


def measure(model: Any, theirs: InVllm, batch_size: int, num_rounds: int, num_new_tokens: int) -> dict[str, Any]:
    """Medians over alternating rounds, after one of each that is not counted."""
    generator = torch.Generator().manual_seed(batch_size)
    size = (batch_size, NUM_PROMPT_TOKENS)
    prompts = torch.randint(min(model.config.vocab_size, 4096), size, generator=generator).tolist()
    engine = TorchEngine(model, num_slots=batch_size)

    ours_s, theirs_s = [], []
    for number in range(num_rounds + 1):
        ours = seconds(lambda: sample_all(engine, prompts, num_new_tokens))
        other = theirs.sample(prompts, num_new_tokens)
        if number:
            ours_s.append(ours)
            theirs_s.append(other)
    ratios = [other / ours for other, ours in zip(theirs_s, ours_s, strict=True)]
    num_tokens = batch_size * num_new_tokens
    return {
        "batch_size": batch_size,
        "engine_tokens_per_s": round(num_tokens / statistics.median(ours_s)),
        "vllm_tokens_per_s": round(num_tokens / statistics.median(theirs_s)),
        "ratio": round(statistics.median(theirs_s) / statistics.median(ours_s), 2),
        "ratio_lowest_round": round(min(ratios), 2),
        "ratio_highest_round": round(max(ratios), 2),
    }


def model_of(name: str, folder: Path) -> Any:
    """Return a model, and write it to a folder for vLLM."""
    model: Any = load_model(SMOLLM2)[0] if name == SMOLLM2 else build_model(MODELS[name])
    model.config.architectures = [type(model).__name__]  # vLLM asks for it
    model.save_pretrained(folder)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=[*MODELS, SMOLLM2], default=[*MODELS, SMOLLM2])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=BATCH_SIZES)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds per batch size")
    parser.add_argument("--new-tokens", type=int, default=128, help="sampled per row")
    parser.add_argument("--output", type=Path, help="write the results there as JSON")
    parser.add_argument("--python", default="", help="the environment of vLLM; by default AGENTGYM_VLLM_PYTHON")
    arguments = parser.parse_args()
    try:
        install = find_vllm(arguments.python)
    except UsageError as error:
        raise SystemExit(str(error)) from None
    torch.set_num_threads(1)
    if SMOLLM2 in arguments.models and cached_model(SMOLLM2) is None:
        print("SmolLM2 is left out: `make models` imports it", file=sys.stderr)
        arguments.models.remove(SMOLLM2)
    models = {}
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            model = model_of(name, Path(folder))
            theirs = InVllm(install.python, Path(folder))
            rows = [
                measure(model, theirs, size, arguments.rounds, arguments.new_tokens) for size in arguments.batch_sizes
            ]
            theirs.close()
        for row in rows:
            print(name, row)
        models[name] = rows
    results = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "torch": torch.__version__,
        "vllm": install.version,
        "num_new_tokens": arguments.new_tokens,
        "num_rounds": arguments.rounds,
        "models": models,
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
