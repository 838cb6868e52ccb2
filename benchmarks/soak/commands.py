"""Parts of the soak that watch whole commands from outside: training runs, and a server of environments."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from watch import NUM_POINTS, Point, cpu_s, disk_kib, steady_point

import agentgym
from agentgym import Message, ToolCall

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "shared"))

from testkit.env_servers import EnvServer

HOUSE: Final = "agentgym/Household-v0"
LOOK: Final = Message("assistant", calls=(ToolCall("look", {}, "0"),))
NUM_AT_A_TIME: Final = 8
"""Sessions that are open at the same time."""
CHEAP: Final = (
    "env.id=agentgym/GuessNumber-v0",
    "env.kwargs.largest=3",
    "env.kwargs.max_turns=2",
    "groups_per_step=1",
    "group.group_size=4",
    "group.num_envs=4",
    "model.hidden_size=32",
    "model.num_layers=1",
    "model.intermediate_size=32",
    "sampling.max_new_tokens=12",
    "sft.num_demos=400",
    "sft.num_epochs=8",
    "eval.num_episodes=8",
    "optimizer.lr=1e-5",
)
"""Settings of the recipe ``tiny`` under which a step is cheap and nearly every step trains."""
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "sync": (),
    "async": ("pipeline.mode=async", "pipeline.max_staleness=1"),
    "lora": ("model.lora.rank=4",),
}
"""Kinds of training runs, with the settings that make them."""


def training(kind: str, total: int, folder: Path) -> Iterator[Point]:
    """Watch ``agentgym train`` for ``total`` steps of RL."""
    chunk = max(1, total // NUM_POINTS)
    run_dir, temporary = folder / f"run-{kind}", folder / f"temporary-{kind}"
    temporary.mkdir()
    num_steps = (NUM_POINTS + 1) * chunk  # so that the last point is taken while it trains
    command = [sys.executable, "-m", "agentgym", "train", "tiny", *CHEAP, *KINDS[kind], f"num_steps={num_steps}"]
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    with open(folder / f"output-{kind}", "w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*command, "--run-dir", str(run_dir)],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        try:
            num_points = 0
            for found in _points(process, run_dir, temporary, chunk):
                num_points += 1
                yield found
            process.wait()
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {output.read()[-2000:]}")
        if num_points < NUM_POINTS:  # a look takes a tenth of a second
            raise SystemExit(f"the run ended after {num_points} of {NUM_POINTS} points; give more --steps")


def _points(process: subprocess.Popen[bytes], run_dir: Path, temporary: Path, chunk: int) -> Iterator[Point]:
    taken, before = 0, (0, 0.0, 0.0)
    for done in _steps(process, run_dir / "metrics.jsonl"):
        if done >= 1 and before[0] == 0:
            before = (done, cpu_s(process.pid), disk_kib(run_dir))
        elif done >= (taken + 1) * chunk and taken < NUM_POINTS:
            now = (done, cpu_s(process.pid), disk_kib(run_dir))
            steps, seconds, kib = (late - early for late, early in zip(now, before, strict=True))
            found = steady_point(done, temporary, process.pid)
            yield replace(found, cpu_ms=1000 * seconds / steps, disk_kib=kib / steps)
            taken, before = taken + 1, now


def _steps(process: subprocess.Popen[bytes], metrics: Path) -> Iterator[int]:
    """Yield the number of steps of RL whenever it has risen, until the process ends."""
    done, offset = 0, 0
    while process.poll() is None:
        time.sleep(0.01)
        if not metrics.is_file():
            continue
        with open(metrics, "rb") as file:
            file.seek(offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        offset += len(whole)
        steps = [row["step"] for line in whole.splitlines() if (row := json.loads(line))["phase"] == "rl"]
        if steps:
            done = steps[-1]
            yield done


def serving(total: int, folder: Path) -> Iterator[Point]:
    """Watch ``agentgym serve`` while clients open, step and close sessions."""
    chunk = max(NUM_AT_A_TIME, total // NUM_POINTS)
    folder.mkdir()
    # where the server keeps its token, which its own TMPDIR would move away from this client
    os.environ.setdefault("AGENTGYM_STATE", str(folder.with_name(f"{folder.name}-state")))
    os.environ["TMPDIR"] = str(folder)
    server = EnvServer(HOUSE)
    try:
        spent = cpu_s(server.process.pid)
        for number in range(1, NUM_POINTS + 1):
            asyncio.run(_sessions(server.url, chunk // NUM_AT_A_TIME))
            now = cpu_s(server.process.pid)
            found = steady_point(number * chunk, folder, server.process.pid)
            yield replace(found, cpu_ms=1000 * (now - spent) / chunk)
            spent = now
    finally:
        server.kill()
        del os.environ["TMPDIR"]


async def _sessions(url: str, num_rounds: int) -> None:
    for _ in range(num_rounds):
        envs = [agentgym.make(HOUSE, url=url) for _ in range(NUM_AT_A_TIME)]
        await asyncio.gather(*(_use(env, seed) for seed, env in enumerate(envs)))
        for env in envs:
            env.close()


async def _use(env: agentgym.Env, seed: int) -> None:
    await env.areset(seed=seed)
    for _ in range(3):
        await env.astep(LOOK)
