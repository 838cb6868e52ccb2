"""Time of a reset and of a click in a browser, and episodes per second, compared with a new browser per episode.

    OMP_NUM_THREADS=1 python benchmarks/gui/speed.py --out benchmarks/gui/results.json

Each way plays the same episodes, alternating in the same run: open a page of three elements, click a button 5 times.

* ``pool``: our environments, one after the other; then ``--parallel`` at a time.
* ``pool, a policy thinks``: the same with half a second between resets and clicks, during which contexts are opened in
  advance.
* ``fresh context``: Playwright's own calls, a new context of a running browser for each episode.
* ``relaunch``: Playwright's own calls, a new browser for each episode, as BrowserGym and others do at ``reset``.

Playwright's own calls wait for what its ``click`` waits for and read ``aria_snapshot``; ours settle and read the tree.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, Playwright, async_playwright

from agentgym.envs.gui.chromium import find_chromium, flags
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.site import Request, Response, Sites
from agentgym.types import Task

BODY = b"<!doctype html><title>0</title><h1>Count</h1><button onclick='document.title++'>More</button><input>"
NUM_CLICKS = 5
_THINKS_S = 0.5
Times = dict[str, list[float]]
Play = Callable[[Times], Coroutine[Any, Any, None]]


class Counter:
    """The page."""

    async def answer(self, request: Request) -> Response:
        return Response(body=BODY) if request.path == "/" else Response(status=404)


class CountEnv(GuiEnv):
    """Click a button."""

    def sites(self, task: Task) -> Sites:
        return {"count.localhost": Counter()}

    async def set_up(self, task: Task) -> str:
        return "Click."

    async def score(self) -> float | None:
        return 1.0 if self.page.title == str(NUM_CLICKS) else None


async def timed(times: list[float], work: Coroutine[Any, Any, Any]) -> Any:
    """Await a call and append its duration in milliseconds."""
    began = time.perf_counter()
    try:
        return await work
    finally:
        times.append(1000 * (time.perf_counter() - began))


async def play_ours(env: GuiEnv, times: Times) -> None:
    """Play one episode in our environment."""
    await timed(times["reset_ms"], env.areset(seed=0))
    for _ in range(NUM_CLICKS):
        ended = (await timed(times["click_ms"], env.astep("click: more")))[2]
    assert ended


async def click(page: Page) -> None:
    """Click as users of Playwright do."""
    await page.get_by_role("button").click()
    await page.locator("body").aria_snapshot()


async def play_page(page: Page, times: Times) -> None:
    """Click as often as one episode does, in a page that is open."""
    for _ in range(NUM_CLICKS):
        await timed(times["click_ms"], click(page))
    assert await page.title() == str(NUM_CLICKS)


async def open_page(browser: Browser, url: str) -> Page:
    """Open a page in a new context, and observe it once."""
    page = await (await browser.new_context()).new_page()
    await page.goto(url)
    await page.locator("body").aria_snapshot()
    return page


async def launched(playwright: Playwright) -> Browser:
    """Launch Chromium with our flags, except for the proxy."""
    words = [flag for flag in flags(js_heap_mb=512, viewport=(1024, 768)) if "proxy" not in flag]
    return await playwright.chromium.launch(executable_path=find_chromium(), args=words)


async def run_for(num_episodes: int, play: Play, times: Times) -> float:
    """Play episodes one after the other; return episodes per second."""
    began = time.perf_counter()
    for _ in range(num_episodes):
        await play(times)
    return num_episodes / (time.perf_counter() - began)


async def serve() -> asyncio.Server:
    """Serve the same page on a port, for Playwright's own calls."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = BODY if head.startswith(b"GET / ") else b""
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        )
        writer.write(body)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


class Ways:
    """The ways to play an episode; each records its times."""

    def __init__(self, playwright: Playwright, running: Browser, url: str, num_parallel: int) -> None:
        self._playwright, self._running, self._url = playwright, running, url
        self._envs = [CountEnv() for _ in range(num_parallel)]

    async def in_pool(self, times: Times) -> None:
        """Play in our environment."""
        await play_ours(self._envs[0], times)
        await self._envs[0].aend_episode()

    async def with_a_policy(self, times: Times) -> None:
        """Play in our environment, with a policy that takes half a second per action."""
        await timed(times["reset_ms"], self._envs[0].areset(seed=0))
        await asyncio.sleep(_THINKS_S)
        await timed(times["click_ms"], self._envs[0].astep("click: more"))
        await self._envs[0].aend_episode()
        await asyncio.sleep(_THINKS_S)

    async def in_context(self, times: Times) -> None:
        """Play by Playwright's calls in a new context."""
        page = await timed(times["reset_ms"], open_page(self._running, self._url))
        await play_page(page, times)
        await page.context.close()

    async def in_browser(self, times: Times) -> None:
        """Play by Playwright's calls in a new browser."""
        page = await timed(times["reset_ms"], self._open_in_new_browser())
        await play_page(page, times)
        assert page.context.browser is not None
        await page.context.browser.close()

    async def side_by_side(self, num_episodes: int) -> float:
        """Play several of our environments at a time; return episodes per second."""
        began = time.perf_counter()
        per_env = -(-num_episodes // len(self._envs))

        async def play(env: GuiEnv) -> None:
            for _ in range(per_env):
                await play_ours(env, {"reset_ms": [], "click_ms": []})

        await asyncio.gather(*(play(env) for env in self._envs))
        return per_env * len(self._envs) / (time.perf_counter() - began)

    async def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            await env.aclose()

    async def _open_in_new_browser(self) -> Page:
        return await open_page(await launched(self._playwright), self._url)


async def measure(num_episodes: int, num_relaunches: int, num_parallel: int, num_rounds: int) -> dict[str, Any]:
    """Measure all ways, round by round, so that other load on the machine affects all of them equally."""
    names = ("pool", "pool, a policy thinks", "fresh context", "relaunch")
    times: dict[str, Times] = {name: {"reset_ms": [], "click_ms": []} for name in names}
    together = f"pool, {num_parallel} at a time"
    rates: dict[str, list[float]] = {name: [] for name in (*times, together)}
    server = await serve()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with async_playwright() as playwright:
        running = await launched(playwright)
        ways = Ways(playwright, running, url, num_parallel)
        plays = dict(zip(names, (ways.in_pool, ways.with_a_policy, ways.in_context, ways.in_browser), strict=True))
        for play in plays.values():  # warm up
            await play({"reset_ms": [], "click_ms": []})
        for _ in range(num_rounds):
            for name, play in plays.items():
                count = num_relaunches if name == "relaunch" else num_episodes
                rates[name].append(await run_for(count, play, times[name]))
            rates[together].append(await ways.side_by_side(num_episodes))
        await running.close()
        await ways.close()
    server.close()
    return {name: {"episodes_per_s": statistics.median(rates[name]), **summary(times.get(name, {}))} for name in rates}


def summary(times: Times) -> dict[str, float]:
    """Median and 95th percentile."""
    found = {}
    for name, values in times.items():
        found[f"{name.removesuffix('_ms')}_p50_ms"] = statistics.median(values)
        found[f"{name.removesuffix('_ms')}_p95_ms"] = statistics.quantiles(values, n=20)[-1]
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--relaunches", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    load_before = os.getloadavg()
    found = asyncio.run(measure(given.episodes, given.relaunches, given.parallel, given.rounds))
    close_browsers()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "chromium": subprocess.run(
            [find_chromium(), "--version"], capture_output=True, text=True, check=False
        ).stdout.strip(),
        "load_average_before": [round(value, 2) for value in load_before],
        "settings": {name: value for name, value in vars(given).items() if name != "out"},
        "results": {name: {key: round(value, 2) for key, value in row.items()} for name, row in found.items()},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
