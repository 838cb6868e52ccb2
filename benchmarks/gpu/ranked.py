"""Check of two ranks on GPUs; part of ``check.py``.

Where there is one GPU, both ranks use it: NCCL is told that they are on different machines (``NCCL_HOSTID``), and sends
everything over the loopback network. So FSDP2's shards, the exchange of episodes and NCCL's calls are those of two
GPUs, but not their speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rows import Row

from agentgym.ports import free_port
from agentgym.rollout.record import read_json_lines, read_records, record_path

SETTINGS = (
    *("env.id=agentgym/GuessNumber-v0", "num_steps=2", "sft.num_demos=64", "sft.batch_size=8", "eval.num_episodes=6"),
    *("groups_per_step=4", "group.group_size=4", "loss.tokens_per_microbatch=256", "zero_variance_filter=off"),
    'loss.regularisers=[{"kind": "entropy", "coef": 0.01}]',
)
EXACT = ("engine.batch_invariant=true", "engine.dtype=float32", "loss.precision=float32_ieee")
"""A completion is then the same whatever else is sampled."""
MODES = ("async",)
TIMEOUT_S = 300


def two_ranks(device: torch.device, shape: str) -> Iterator[Row]:
    """Compare a run of two ranks in sync mode with that of one rank, and train in the other modes."""
    plans = {"one": (1, EXACT), "two": (2, EXACT)}
    plans |= {mode: (2, (f"pipeline.mode={mode}", "loss.precision=bfloat16")) for mode in MODES}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 3)) as pool:
        path = Path(folder)
        runs = {name: pool.submit(train, count, path / name, *more) for name, (count, more) in plans.items()}
        one, two = (played(path / name, 0) for name in ("one", "two") if runs[name].result() is None)
        yield Row(
            "two ranks: turns of the first step that one rank did not play", float(len(one ^ two)), 0.0, f"{len(one)}"
        )
        first, second = (rl_rows(path / name)[0]["grad_norm"] for name in ("one", "two"))
        yield Row(
            "two ranks: gradient norm of the first step", abs(first / second - 1) if first else float("nan"), 1e-3
        )
        for mode in MODES:
            runs[mode].result()
            rows = rl_rows(path / mode)
            is_whole = len(rows) == 2 and all(row["trained_tokens"] and row["grad_norm"] for row in rows)
            yield Row(
                f"two ranks, {mode} mode: log-probability gap",
                rows[0]["logprob_gap_mean"] if is_whole else float("nan"),
                0.1,
            )


def train(num_ranks: int, run_dir: Path, *overrides: str) -> None:
    """Run ``agentgym train`` in several processes, as torchrun would start them.

    Raises:
        RuntimeError: a rank failed; the message has the end of its output.
    """
    words = [sys.executable, "-m", "agentgym", "train", "tiny", *SETTINGS, *overrides, "--run-dir", str(run_dir)]
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}
    ranks = []
    for rank in range(num_ranks):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **together, "RANK": str(rank)}
        environment |= {"LOCAL_RANK": str(rank)} if torch.cuda.device_count() != 1 else of_one_gpu(rank)
        log = run_dir.with_name(f"{run_dir.name}-{rank}.log")
        with log.open("wb") as out:
            ranks.append((subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env=environment), log))
    try:
        ended = [process.wait(TIMEOUT_S) for process, _ in ranks]
    finally:
        for process, _ in ranks:
            process.kill()
    if any(ended):
        said = "\n".join(log.read_text(errors="replace")[-1500:] for _, log in ranks)
        raise RuntimeError(f"{num_ranks} ranks ended with {ended}: {said}")


def of_one_gpu(rank: int) -> dict[str, str]:
    """Return the environment of a rank that shares the GPU with others."""
    return {"LOCAL_RANK": "0", "NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": "lo"}


def played(run_dir: Path, step: int) -> set[str]:
    """Return the tokens and the reward of every turn of a step, one string each."""
    return {
        json.dumps([record.group.ordinal, member, number, turn.completion.token_ids, turn.reward])
        for record in read_records(record_path(run_dir, step))
        for member, episode in enumerate(record.group.trajectories)
        for number, turn in enumerate(episode.turns)
    }


def rl_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics of the RL steps."""
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
