"""Steps per second of an environment server with its guard against other sites, as a share of those without it.

Two servers run at the same time, one of them with the guard taken out, and steps on them alternate, so that the
machine's load is alike. Run: ``python benchmarks/server/guard.py --output benchmarks/server/guard``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "search")]

from machine import about_this_machine  # noqa: E402

import agentgym  # noqa: E402
from agentgym import Message, ToolCall  # noqa: E402

HOUSE = "agentgym/Household-v0"
LOOK = Message("assistant", calls=(ToolCall("look", {}, "0"),))
CALL = {"action": {"role": "assistant", "content": "", "calls": [{"name": "look", "arguments": {}, "id": "0"}]}}


class Server:
    """A server in a process of its own."""

    def __init__(self, *, is_guarded: bool) -> None:
        command = [sys.executable, __file__, "--serve", "guarded" if is_guarded else "bare"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.url, self.token = said["url"], said["token"]

    def end(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.wait()


def serve(kind: str) -> None:
    """Run ``agentgym serve``, without the guard if the kind is ``bare``."""
    from agentgym.cli.main import app
    from agentgym.server import run

    if kind == "bare":
        taken_out: Any = lambda guarded, access: guarded  # noqa: E731
        run.WebGuard = taken_out  # type: ignore[misc]
    app(["serve", HOUSE, "--port", "0", "--json"])


def over_websocket(servers: Sequence[Server], num_steps: int) -> list[list[float]]:
    """Return the seconds of each step on each server, over connections that the guard checks when they open."""

    async def walk() -> list[list[float]]:
        envs = [agentgym.make(HOUSE, url=server.url, max_turns=100_000) for server in servers]
        for env in envs:
            await env.areset(seed=0)
        seconds: list[list[float]] = [[] for _ in envs]
        for number in range(num_steps):
            for at in _order(number):
                began = time.perf_counter()
                await envs[at].astep(LOOK)
                seconds[at].append(time.perf_counter() - began)
        for env in envs:
            env.close()
        return seconds

    return asyncio.run(walk())


def over_http(servers: Sequence[Server], num_steps: int) -> list[list[float]]:
    """Return the seconds of each step on each server, over HTTP, where the guard checks each request."""
    seconds: list[list[float]] = [[] for _ in servers]
    with ExitStack() as stack:
        steps = [_http_step(stack, server) for server in servers]
        for number in range(num_steps):
            for at in _order(number):
                began = time.perf_counter()
                steps[at]()
                seconds[at].append(time.perf_counter() - began)
    return seconds


def _http_step(stack: ExitStack, server: Server) -> Callable[[], object]:
    headers = {"Authorization": f"Bearer {server.token}"}
    address = server.url.replace("ws://", "http://")
    client = stack.enter_context(httpx.Client(base_url=address, headers=headers, timeout=60, trust_env=False))
    opening = {"env": HOUSE, "kwargs": {"max_turns": 100_000}}
    session = client.post("/sessions", json=opening).json()["session"]
    client.post(f"/sessions/{session}/reset", json={"seed": 0}).raise_for_status()
    return lambda: client.post(f"/sessions/{session}/step", json=CALL).raise_for_status()


def _order(number: int) -> tuple[int, int]:
    """Return the order of the servers in a round: who is first alternates."""
    return (0, 1) if number % 2 else (1, 0)


def _fast(seconds: Sequence[float]) -> float:
    """Return the median of the fastest fiftieth, in which nothing else had the processor."""
    return statistics.median(sorted(seconds)[: max(1, len(seconds) // 50)])


def measure(num_steps: int) -> dict[str, Any]:
    """Return the ratio of each way. Steps on the two servers alternate, so that their load is alike."""
    servers = (Server(is_guarded=True), Server(is_guarded=False))
    found: dict[str, Any] = {"steps": num_steps}
    try:
        for name, way in (("websocket", over_websocket), ("http", over_http)):
            way(servers, max(1, num_steps // 10))
            guarded_s, bare_s = (_fast(seconds) for seconds in way(servers, num_steps))
            found[name] = {
                "steps_per_s_guarded": 1 / guarded_s,
                "steps_per_s_bare": 1 / bare_s,
                "ratio": bare_s / guarded_s,
            }
    finally:
        for server in servers:
            server.end()
    return found


def page(found: dict[str, Any], about: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    rows = "\n".join(
        f"| {name} | {found[name]['steps_per_s_guarded']:,.0f} | {found[name]['steps_per_s_bare']:,.0f} | "
        f"{found[name]['ratio']:.3f} |"
        for name in ("websocket", "http")
    )
    return (
        "# The guard of servers, in steps per second\n\n"
        "`python benchmarks/server/guard.py`: the household in one session, from a client on the same machine.\n"
        "The guard checks a WebSocket when it opens, and over HTTP each request. Steps on two servers alternate in\n"
        f"one run, of which one has no guard: {found['steps']} steps on each. Rates are of the fastest fiftieth,\n"
        "which other work of the machine does not slow down.\n\n"
        f"| way | with the guard | without | ratio |\n|---|---|---|---|\n{rows}\n\n"
        f"{about['machine']}, load {about['load_average']}, {about['date']}, commit {about['commit']}.\n"
    )


def main() -> None:
    """Measure, print and save; or serve, for the processes of the measurement."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=2000)
    arguments.add_argument("--output", type=Path)
    arguments.add_argument("--serve", choices=("guarded", "bare"))
    given = arguments.parse_args()
    if given.serve:
        serve(given.serve)
        return
    about = about_this_machine("uvicorn", "websockets", "fastapi")
    found = measure(given.steps)
    print(page(found, about))
    if given.output:
        text = json.dumps({**found, **about}, indent=1)
        given.output.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
        given.output.with_suffix(".md").write_text(page(found, about), encoding="utf-8")


if __name__ == "__main__":
    main()
