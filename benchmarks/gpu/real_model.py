"""Check that SmolLM2 learns on a GPU; part of ``check.py``, and skipped where the model is not imported.

It learns with the embedded engine, and where vLLM is installed also with a server on the trainer's GPU, which sleeps
while the trainer trains. The server is started as a user would start it, by the command that the run prints. On a CPU a
small model of random weights trains for two steps with a server.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ranked
import torch
from rows import Row, skipped

from agentgym.errors import UsageError
from agentgym.ports import free_port
from agentgym.trainers.engines.vllm.launch import find_vllm
from agentgym.trainers.models.sources import cached_model

RECIPE = "smollm2-guess"
NUM_STEPS, NUM_SERVED_STEPS = 40, 15
ASLEEP = (RECIPE, f"num_steps={NUM_SERVED_STEPS}", "engine.weight_sync=ipc", "engine.sleep=true")
TINY = ("tiny", *ranked.SETTINGS, "engine.weight_sync=folder")
COMMAND = "start it by: "
RISES = {NUM_STEPS: 0.5, NUM_SERVED_STEPS: 0.2}
"""How much held-out success must rise, by the number of steps."""
GAP = 0.1
"""Largest mean difference of sampled and trained log-probabilities in a step; weights of another version give above 1.
"""
TIMEOUT_S = 240.0


def real_model(device: torch.device, shape: str) -> Iterator[Row]:
    """Train SmolLM2 with each engine: held-out success must rise."""
    is_gpu = device.type == "cuda"
    if is_gpu and cached_model("smollm2") is None:
        yield skipped("SmolLM2 learns", "needs agentgym model import smollm2")
        return
    with tempfile.TemporaryDirectory() as name:
        alone, with_server = Path(name) / "alone", Path(name) / "with-server"
        if is_gpu:
            result = trained(alone, RECIPE, f"num_steps={NUM_STEPS}")
            yield from rows_of("SmolLM2, embedded engine", result, alone)
        if why := why_no_server(is_gpu):
            yield skipped("training with a vLLM server, by the printed command", why)
            return
        way = "SmolLM2, vLLM asleep while training" if is_gpu else "a small model, vLLM"
        yield from rows_of(way, served(with_server, *(ASLEEP if is_gpu else TINY), on_gpu=is_gpu), with_server)


def why_no_server(is_gpu: bool) -> str:
    """Return why no server can be started here; empty if one can."""
    if not is_gpu and not os.environ.get("AGENTGYM_VLLM_PYTHON"):
        return "on a CPU AGENTGYM_VLLM_PYTHON must name the environment of vLLM"
    try:
        find_vllm()
    except UsageError as error:
        return str(error)
    return ""


def trained(run_dir: Path, *words: str) -> dict[str, Any]:
    """Train by the command line, and return the result that it prints."""
    with run_dir.with_suffix(".log").open("wb") as log:
        done = subprocess.run(
            train_words(run_dir, words), stdout=subprocess.PIPE, stderr=log, env=of_this(), check=False
        )
    return result_of(run_dir, done.stdout, done.returncode)


def served(run_dir: Path, *words: str, on_gpu: bool) -> dict[str, Any]:
    """Train with a vLLM server, which is started by the command that the run prints; return the result."""
    log = run_dir.with_suffix(".log")
    url = f"http://127.0.0.1:{free_port()}"
    words = (*words, "engine.kind=vllm", f'engine.urls=["{url}"]')
    with log.open("wb") as out:
        trainer = subprocess.Popen(train_words(run_dir, words), stdout=subprocess.PIPE, stderr=out, env=of_this())
    server = None
    try:
        command = printed_command(trainer, log)
        print(f"      {command}", flush=True)
        server = subprocess.Popen(
            serve_words(command, run_dir, on_gpu=on_gpu),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=of_this(),
        )
        said, _ = trainer.communicate(timeout=TIMEOUT_S)
        return result_of(run_dir, said, trainer.returncode)
    except Exception:
        print(*(text.read_text(errors="replace")[-2000:] for text in server_logs(run_dir)), sep="\n", flush=True)
        raise
    finally:
        trainer.kill()
        if server is not None:
            server.terminate()
            server.wait(60)


def train_words(run_dir: Path, words: tuple[str, ...]) -> list[str]:
    """Return the command line of a run."""
    return [sys.executable, "-m", "agentgym", "train", *words, "--run-dir", str(run_dir), "--json"]


def serve_words(command: str, run_dir: Path, *, on_gpu: bool) -> list[str]:
    """Return the printed command for this Python, with a log file; on a GPU without graphs, to start sooner."""
    program, *words = shlex.split(command)
    assert program == "agentgym"
    flags = words.index("--") if "--" in words else len(words)
    more = ["--log", str(run_dir.with_suffix(".server.log")), *([] if on_gpu else ["--num-threads", "1"])]
    words = [*words[:flags], *more, *words[flags:]]
    if on_gpu:
        words += [*([] if "--" in words else ["--"]), "--enforce-eager"]
    return [sys.executable, "-m", "agentgym", *words]


def printed_command(trainer: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the command by which the run says that its server is started.

    Raises:
        RuntimeError: the run ended, or did not print it in time.
    """
    end = time.monotonic() + TIMEOUT_S
    while trainer.poll() is None and time.monotonic() < end:
        for line in log.read_text(errors="replace").splitlines(keepends=True):
            if COMMAND in line and line.endswith("\n"):
                return line.split(COMMAND)[1].strip()
        time.sleep(0.1)
    raise RuntimeError(f"the run printed no command: {log.read_text(errors='replace')[-1500:]}")


def result_of(run_dir: Path, said: bytes, code: int) -> dict[str, Any]:
    """Return the result of a run.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    if code:
        raise RuntimeError(
            f"the run ended with {code}: {run_dir.with_suffix('.log').read_text(errors='replace')[-1500:]}"
        )
    result: dict[str, Any] = json.loads(said)
    return result


def server_logs(run_dir: Path) -> list[Path]:
    """Return the logs of a run with a server, as far as they exist."""
    return [path for path in (run_dir.with_suffix(".log"), run_dir.with_suffix(".server.log")) if path.exists()]


def of_this() -> dict[str, str]:
    """Return the environment of a command that uses this checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def rows_of(way: str, result: Mapping[str, Any], run_dir: Path) -> Iterator[Row]:
    """Return the rows of one run: what it learned, and how far sampled log-probabilities were from trained ones."""
    rows = ranked.rl_rows(run_dir)
    trained_rows = [row for row in rows if row["trained_tokens"]]
    if not trained_rows:
        yield Row(way, math.nan, 0.0, f"none of {len(rows)} steps trained")
        return
    before, after = result["success_before"] or 0.0, result["success_after"] or 0.0
    curve = " ".join(f"{row['success']:.2f}" for row in rows[::4])
    parts = ("rollout", "train", "sync")
    seconds = ", ".join(
        f"{part} {statistics.median(row.get(f'time/{part}_s', math.nan) for row in trained_rows):.2f} s"
        for part in parts
    )
    limit = -RISES[len(rows)] if len(rows) in RISES else 1.0
    note = f"{before:.2f} to {after:.2f} in {result['wall_s']:.0f} s; every fourth step: {curve}; a step: {seconds}"
    yield Row(f"{way}: success before less after", before - after, limit, note)
    gaps = [row["logprob_gap_mean"] for row in trained_rows]
    note = f"the largest of {len(gaps)} steps {max(gaps):.2g}"
    yield Row(f"{way}: log-probability gap of the first step", gaps[0], GAP, note)
