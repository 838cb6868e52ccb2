"""Load on an environment server: many sessions that step at the same time, and many that are opened and abandoned.

Server and clients share one machine. Run: ``python benchmarks/server/load.py --output benchmarks/server/load``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "search"), str(ROOT / "tests" / "shared")]

from machine import about_this_machine  # noqa: E402
from testkit.env_servers import EnvServer  # noqa: E402

import agentgym  # noqa: E402
from agentgym import Message, ToolCall  # noqa: E402

HOUSE = "agentgym/Household-v0"
LOOK = Message("assistant", calls=(ToolCall("look", {}, "0"),))
IDLE_S = 5.0
NUM_WARM = 8


async def step_many(url: str, num_sessions: int, num_steps: int) -> tuple[list[float], float, float]:
    """Return seconds of each step, of all resets together, and of all steps together."""
    envs = [agentgym.make(HOUSE, url=url, max_turns=10_000) for _ in range(num_sessions)]
    began = time.perf_counter()
    await asyncio.gather(*(env.areset(seed=seed) for seed, env in enumerate(envs)))
    reset_s, began = time.perf_counter() - began, time.perf_counter()
    seconds: list[float] = []

    async def walk(env: agentgym.Env) -> None:
        for _ in range(num_steps):
            asked = time.perf_counter()
            await env.astep(LOOK)
            seconds.append(time.perf_counter() - asked)

    await asyncio.gather(*(walk(env) for env in envs))
    step_s = time.perf_counter() - began
    for env in envs:
        env.close()
    return seconds, reset_s, step_s


def wait_until_empty(server: EnvServer) -> float:
    """Return the seconds until the server has no session."""
    began = time.perf_counter()
    while httpx.get(f"{server.http}/health", timeout=60).json()["num_sessions"]:
        time.sleep(0.2)
    return time.perf_counter() - began


def abandon(server: EnvServer, num_sessions: int) -> None:
    """Open sessions over plain HTTP, reset each, and abandon them."""
    with httpx.Client(base_url=server.http, headers=server.headers, timeout=120) as client:
        for seed in range(num_sessions):
            session = client.post("/sessions", json={"env": HOUSE}).json()["session"]
            client.post(f"/sessions/{session}/reset", json={"seed": seed})


def measure(num_sessions: int, num_steps: int, num_abandoned: int) -> dict[str, Any]:
    """Return all figures."""
    limits = ("--max-sessions", str(max(num_sessions, num_abandoned, NUM_WARM) + 1), "--idle-timeout-s", str(IDLE_S))
    server = EnvServer(HOUSE, *limits)
    try:
        asyncio.run(step_many(server.url, NUM_WARM, 2))
        wait_until_empty(server)
        before = server.memory_mib
        seconds, reset_s, step_s = asyncio.run(step_many(server.url, num_sessions, num_steps))
        held = server.memory_mib
        wait_until_empty(server)
        seconds.sort()
        rested = server.memory_mib
        abandon(server, num_abandoned)
        full = server.memory_mib
        emptied_s = wait_until_empty(server)
        abandon(server, num_abandoned)
        wait_until_empty(server)
        return {
            "sessions": num_sessions,
            "steps": len(seconds),
            "resets_per_s": num_sessions / reset_s,
            "steps_per_s": len(seconds) / step_s,
            "p50_ms": 1000 * seconds[len(seconds) // 2],
            "p99_ms": 1000 * seconds[int(len(seconds) * 0.99)],
            "kib_per_session": 1024 * (held - before) / num_sessions,
            "abandoned": num_abandoned,
            "reaped_within_s": emptied_s,
            "mib_before": rested,
            "mib_with_abandoned": full,
            "mib_after_a_second_time": server.memory_mib,
        }
    finally:
        server.kill()


def measure_openenv(python: str, num_sessions: int, num_steps: int) -> dict[str, Any]:
    """Return the figures of OpenEnv's own server and client on the same work."""
    script = Path(__file__).with_name("openenv_load.py")
    command = [python, str(script), str(num_sessions), str(num_steps), str(IDLE_S)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def page(found: dict[str, Any], beside: dict[str, Any], about: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    names = [*found, *(name for name in beside if name not in found)]
    shown = {name: [f"{held[name]:,.1f}" if name in held else "" for held in (found, beside)] for name in names}
    rows = "\n".join(f"| {name} | {ours} | {theirs} |" for name, (ours, theirs) in shown.items())
    return (
        "# Load on an environment server\n\n"
        f"`python benchmarks/server/load.py`: the household, one server process; the clients are on the same machine.\n"
        f"Sessions are reaped after {IDLE_S:g} s without a heartbeat.\n\n"
        "OpenEnv's column is its own server at its default settings (`agentgym serve --protocol openenv`,\n"
        "openenv-core 0.3) and its own client, which opens a connection for each session. `silent_reaped` counts\n"
        f"those of its sessions that were closed after they had said nothing for {3 * IDLE_S:g} s.\n\n"
        f"| figure | agentgym | OpenEnv |\n|---|---|---|\n{rows}\n\n"
        f"{about['machine']}, load {about['load_average']}, {about['date']}, commit {about['commit']}.\n"
    )


def main() -> None:
    """Measure, print and save."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sessions", type=int, default=1000)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--abandoned", type=int, default=10_000)
    arguments.add_argument(
        "--openenv-python", default="", help="Python with openenv-core, whose server is measured, too"
    )
    arguments.add_argument("--output", type=Path, required=True)
    given = arguments.parse_args()
    about = about_this_machine("uvicorn", "websockets", "fastapi")
    found = measure(given.sessions, given.steps, given.abandoned)
    beside = measure_openenv(given.openenv_python, given.sessions, given.steps) if given.openenv_python else {}
    results = {**found, "openenv": beside, **about}
    given.output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    given.output.with_suffix(".md").write_text(page(found, beside, about), encoding="utf-8")
    print(page(found, beside, about))


if __name__ == "__main__":
    main()
