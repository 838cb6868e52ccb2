"""Bytes and seconds of a weight update from the trainer to a vLLM server on a CPU: the whole model, and adapters.

    python benchmarks/weights/bench.py --python .venv-vllm                     SmolLM2-135M -> results.json, results.md
    python benchmarks/weights/bench.py --python .venv-vllm --tiny --out OUT    a model of 20,000 weights

An update is what a training run does after a step: write the files, have the server load them, and check by checksum
and by scoring a few tokens that it computes with them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from agentgym.ports import free_port
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.engines.vllm.launch import ServeOptions, VllmProcess, find_vllm
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.models.model import save_model
from agentgym.trainers.models.sources import local_model
from agentgym.trainers.recipes import load_recipe
from agentgym.trainers.run.run import Run

HERE = Path(__file__).parent
LORA_RANK = 16
TINY = {"hidden_size": 32, "num_layers": 1, "head_dim": 32, "vocab_size": 320, "max_context_tokens": 160}


@torch.no_grad()
def change(model: Any) -> None:
    """Change every trained weight a little, as an optimizer step does."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(1e-3)


async def updates(run: Run, num_updates: int) -> tuple[list[float], list[int]]:
    """Return the seconds of each update and the bytes of its files."""
    engine = run.engine
    assert isinstance(engine, VllmEngine)
    seconds, sizes = [], []
    try:
        await engine.connect(print)
        await engine.update_weights(0)
        for version in range(1, num_updates + 1):
            change(run.model)
            start = time.perf_counter()
            await engine.update_weights(version)
            seconds.append(time.perf_counter() - start)
            (folder,) = (run.run_dir / "weights").glob(f"v{version:06d}-*")
            sizes.append(sum(path.stat().st_size for path in folder.rglob("*.safetensors")))
    finally:
        await engine.close()
    return seconds, sizes


def measure(weight_sync: str, options: argparse.Namespace, folder: Path, url: str) -> dict[str, Any]:
    """Return one row: some updates of a server."""
    run = made_run(weight_sync, options, folder / weight_sync, url)
    seconds, sizes = asyncio.run(updates(run, options.updates))
    return {
        "weight_sync": weight_sync,
        "num_parameters": sum(p.numel() for p in run.model.parameters()),
        "num_trained": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        "seconds": seconds,
        "bytes": sizes[-1],
    }


def made_run(weight_sync: str, options: argparse.Namespace, folder: Path, url: str) -> Run:
    """Return a training run whose engine is the server at ``url``."""
    settings = [
        *("env.id=agentgym/GuessNumber-v0", "engine.kind=vllm", f"engine.weight_sync={weight_sync}"),
        *(f'engine.urls=["{url}"]', "engine.update_timeout_s=600", "engine.start_timeout_s=600"),
    ]
    lora = {"rank": LORA_RANK} if weight_sync == "lora" else {}
    model: dict[str, Any] = (
        {**TINY, "lora": lora} if options.tiny else {"path": "smollm2", "max_context_tokens": 160, "lora": lora}
    )
    return Run(apply_overrides(load_recipe("tiny"), [*settings, f"model={json.dumps(model)}"]), folder)


def measure_all(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return one row for each way, all with the same server."""
    port = free_port()
    if options.tiny:
        run = made_run("folder", options, folder / "tiny", f"http://127.0.0.1:{port}")
        save_model(run.model, run.tokenizer, folder / "model")
    source = folder / "model" if options.tiny else local_model("smollm2")
    rank = LORA_RANK if "lora" in options.ways else 0
    serving = ServeOptions(
        model=str(source),
        port=port,
        lora_rank=rank,
        num_threads=1,
        max_context_tokens=160,
        cache_gib=1 / 32 if options.tiny else 1.0,
    )
    process = VllmProcess(find_vllm(options.python), serving, folder / "server.log")
    try:
        process.wait_until_ready(900.0)
        # adapters first, since they are of the weights that the server begins with
        rows = {way: measure(way, options, folder, process.url) for way in sorted(options.ways, reverse=True)}
        return [rows[way] for way in options.ways]
    finally:
        process.stop()


def table(rows: list[dict[str, Any]], about: dict[str, str]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| way | trained weights | written, MiB | an update, s (median; least, most) |",
        "|---|---|---|---|",
        *(
            f"| `{row['weight_sync']}` | {row['num_trained']:,} | {row['bytes'] / 2**20:,.1f} "
            f"| {statistics.median(row['seconds']):.2f} ({min(row['seconds']):.2f}, {max(row['seconds']):.2f}) |"
            for row in rows
        ),
        "",
        f"{about['machine']}, {about['date']}, commit {about['commit']}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("AGENTGYM_VLLM_PYTHON", ""), help="the environment of vLLM")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--ways", nargs="+", choices=("folder", "lora"), default=["folder", "lora"])
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_all(options, Path(folder))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    about = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
    }
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(table(rows, about), encoding="utf-8")
    print(table(rows, about))


if __name__ == "__main__":
    main()
