"""Steps per second of an environment server with its guard against other sites, as a share of those without it.

Two servers run at the same time, one of them with the guard taken out, and are asked in turns, so that the machine's
load is alike. Run: ``python benchmarks/server/guard.py --output benchmarks/server/guard``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "search")]

from machine import about_this_machine  # noqa: E402

import agentgym  # noqa: E402
from agentgym import Message, ToolCall  # noqa: E402

_MORE = 10
"""Steps over a WebSocket for each over HTTP, which is slower."""
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


def over_websocket(server: Server, num_steps: int) -> float:
    """Return the steps per second of one connection, which the guard checks once."""
    num_steps *= _MORE

    async def walk() -> float:
        env = agentgym.make(HOUSE, url=server.url, max_turns=100_000)
        await env.areset(seed=0)
        began = time.perf_counter()
        for _ in range(num_steps):
            await env.astep(LOOK)
        spent_s = time.perf_counter() - began
        env.close()
        return num_steps / spent_s

    return asyncio.run(walk())


def over_http(server: Server, num_steps: int) -> float:
    """Return the steps per second over HTTP, where the guard checks each request."""
    headers = {"Authorization": f"Bearer {server.token}"}
    address = server.url.replace("ws://", "http://")
    with httpx.Client(base_url=address, headers=headers, timeout=60, trust_env=False) as client:
        opening = {"env": HOUSE, "kwargs": {"max_turns": 100_000}}
        session = client.post("/sessions", json=opening).json()["session"]
        client.post(f"/sessions/{session}/reset", json={"seed": 0}).raise_for_status()
        began = time.perf_counter()
        for _ in range(num_steps):
            client.post(f"/sessions/{session}/step", json=CALL).raise_for_status()
        spent_s = time.perf_counter() - began
        client.delete(f"/sessions/{session}")
    return num_steps / spent_s


def measure(num_rounds: int, num_steps: int) -> dict[str, Any]:
    """Return the ratio of each way, the median over rounds that ask both servers in turns."""
    guarded, bare = Server(is_guarded=True), Server(is_guarded=False)
    ways: dict[str, Callable[[Server, int], float]] = {"websocket": over_websocket, "http": over_http}
    found: dict[str, Any] = {"rounds": num_rounds, "steps": num_steps}
    try:
        for name, way in ways.items():
            for server in (guarded, bare):
                way(server, max(1, num_steps // 10))
            pairs = []
            for number in range(num_rounds):  # who is first alternates, too
                order = (guarded, bare) if number % 2 else (bare, guarded)
                rates = {server: way(server, num_steps) for server in order}
                pairs.append((rates[guarded], rates[bare]))
            found[name] = {
                "steps_per_s_guarded": statistics.median(pair[0] for pair in pairs),
                "steps_per_s_bare": statistics.median(pair[1] for pair in pairs),
                "ratio": statistics.median(pair[0] / pair[1] for pair in pairs),
            }
    finally:
        guarded.end()
        bare.end()
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
        "The guard checks a WebSocket when it opens, and over HTTP each request. Both servers run at once and are\n"
        f"asked in turns: {found['rounds']} rounds of {found['steps']} steps over HTTP and {_MORE} times as many over\n"
        "WebSockets, of which the medians are below.\n\n"
        f"| way | with the guard | without | ratio |\n|---|---|---|---|\n{rows}\n\n"
        f"{about['machine']}, load {about['load_average']}, {about['date']}, commit {about['commit']}.\n"
    )


def main() -> None:
    """Measure, print and save; or serve, for the processes of the measurement."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--steps", type=int, default=400)
    arguments.add_argument("--output", type=Path)
    arguments.add_argument("--serve", choices=("guarded", "bare"))
    given = arguments.parse_args()
    if given.serve:
        serve(given.serve)
        return
    about = about_this_machine("uvicorn", "websockets", "fastapi")
    found = measure(given.rounds, given.steps)
    print(page(found, about))
    if given.output:
        text = json.dumps({**found, **about}, indent=1)
        given.output.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
        given.output.with_suffix(".md").write_text(page(found, about), encoding="utf-8")


if __name__ == "__main__":
    main()
