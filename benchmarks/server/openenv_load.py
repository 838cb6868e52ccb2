"""The load of ``load.py`` on OpenEnv's own server, by its own client: ``load.py --openenv-python`` runs it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from openenv.core.generic_client import GenericEnvClient

HOUSE = "agentgym/Household-v0"
LOOK = {"type": "call_tool", "tool_name": "look", "arguments": {}}
PATIENCE_S = 600.0


def memory_mib(pid: int) -> float:
    """Return a process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def num_sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += os.readlink(link).startswith("socket:")
        except OSError:  # closed meanwhile
            continue
    return found


async def load(url: str, pid: int, num_sessions: int, num_steps: int, idle_s: float) -> dict[str, Any]:
    """Return all figures."""
    before = memory_mib(pid)
    limits = {"connect_timeout_s": PATIENCE_S, "message_timeout_s": PATIENCE_S}
    clients = [GenericEnvClient(base_url=url, **limits) for _ in range(num_sessions)]
    began = time.perf_counter()

    async def begin(client: Any, seed: int) -> None:
        await client.connect()
        await client.reset(seed=seed)

    await asyncio.gather(*(begin(client, seed) for seed, client in enumerate(clients)))
    reset_s, began = time.perf_counter() - began, time.perf_counter()
    seconds: list[float] = []

    async def walk(client: Any) -> None:
        for _ in range(num_steps):
            asked = time.perf_counter()
            await client.step(LOOK)
            seconds.append(time.perf_counter() - asked)

    await asyncio.gather(*(walk(client) for client in clients))
    step_s = time.perf_counter() - began
    held, with_all = memory_mib(pid), num_sockets(pid)
    await asyncio.sleep(3 * idle_s)
    reaped = with_all - num_sockets(pid)
    seconds.sort()
    return {
        "sessions": num_sessions,
        "steps": len(seconds),
        "resets_per_s": num_sessions / reset_s,
        "steps_per_s": len(seconds) / step_s,
        "p50_ms": 1000 * seconds[len(seconds) // 2],
        "p99_ms": 1000 * seconds[int(len(seconds) * 0.99)],
        "kib_per_session": 1024 * (held - before) / num_sessions,
        "silent": num_sessions,
        "silent_reaped": reaped,
    }


def main() -> None:
    """Measure and print."""
    num_sessions, num_steps, idle_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    limits = ["--protocol", "openenv", "--port", "0", "--max-sessions", str(num_sessions + 1), "--json"]
    command = [sys.executable, "-m", "agentgym", "serve", HOUSE, *limits]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        print(json.dumps(asyncio.run(load(url, server.pid, num_sessions, num_steps, idle_s))))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
