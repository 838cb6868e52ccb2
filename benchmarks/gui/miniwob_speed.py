"""Time of a reset and of a click in MiniWoB++, and episodes per second, compared with a new browser per episode.

    OMP_NUM_THREADS=1 python benchmarks/gui/miniwob_speed.py --out benchmarks/gui/miniwob-speed.json

Each way plays the same episodes of ``--tasks``, by scripted policies, alternating in the same run.

* ``kept pages``: our environment with its defaults, which begins most tasks on a page that is already open; one
  environment, and ``--parallel`` of them, each with all tasks, or with one task of its own.
* ``fresh contexts``: our environment with a fresh browser context for each episode.
* ``relaunch``: a new browser for each episode, as BrowserGym and others do at ``reset``, by Playwright's own calls; the
  page, the start of the episode and the clicks are the same, and ``aria_snapshot`` is the observation.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.async_api import Page, Playwright, async_playwright
from speed import Times, launched, summary, timed

from agentgym.envs.gui.chromium import find_chromium
from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.network import EpisodeNetwork
from agentgym.envs.gui.pool import close_browsers
from agentgym.types import Task

_TASKS = ("click-test-2", "click-button", "click-link", "click-dialog", "enter-text", "click-tab")


class FreshContexts(MiniWoBEnv):
    """A fresh browser context for every episode."""

    def kept_page(self, task: Task) -> str | None:
        return None


async def play(env: MiniWoBEnv, task: str, times: Times) -> None:
    """One episode by the scripted policy."""
    await timed(times["reset_ms"], env.areset(options={"task": task}))
    over, outcome = False, 0.0
    while not over:
        _, outcome, terminated, truncated, _ = await timed(times["step_ms"], env.astep(env.oracle()))
        over = terminated or truncated
    assert outcome == 1.0, task
    await env.aend_episode()


async def play_many(envs: Sequence[MiniWoBEnv], tasks: Sequence[str], times: Times) -> float:
    """Episodes shared out among environments that play at the same time; episodes per second."""
    began = time.perf_counter()

    async def some(at: int) -> None:
        for task in tasks[at :: len(envs)]:
            await play(envs[at], task, times)

    await asyncio.gather(*(some(at) for at in range(len(envs))))
    return len(tasks) / (time.perf_counter() - began)


async def open_page(playwright: Playwright, proxy_url: str, url: str) -> Page:
    """Open a page in a new browser, begin an episode on it, and observe it once."""
    browser = await launched(playwright)
    context = await browser.new_context(viewport={"width": 332, "height": 214}, proxy={"server": proxy_url})
    page = await context.new_page()
    await page.goto(url)
    await page.evaluate("Math.seedrandom('0'), core.startEpisodeReal()")
    await page.locator("body").aria_snapshot()
    return page


async def click(page: Page) -> None:
    """Click, observe the page, and read the outcome."""
    await page.mouse.click(80, 130)
    await page.locator("body").aria_snapshot()
    await page.evaluate("[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]")


async def relaunch_many(playwright: Playwright, names: Sequence[str], times: Times) -> float:
    """Play each episode in a new browser; clicks on the middle of the page replace the policy's actions."""
    env, network = MiniWoBEnv(), EpisodeNetwork()
    await network.start()
    began = time.perf_counter()
    for name in names:
        task = Task(id=f"{name}-0", split="train", seed=0, data={"task": name})
        network.open_to(env.sites(task))
        page = await timed(times["reset_ms"], open_page(playwright, network.url, env.start_url(task)))
        await timed(times["step_ms"], click(page))
        assert page.context.browser is not None
        await page.context.browser.close()
    await network.close()
    return len(names) / (time.perf_counter() - began)


async def measure(
    names: Sequence[str], num_episodes: int, num_relaunches: int, num_parallel: int, num_rounds: int
) -> Any:
    """Measure all ways, round by round, so that other load on the machine affects all of them equally."""
    pool = {"num_kept": num_parallel * len(names), "contexts_per_browser": 2 * num_parallel * len(names)}
    envs, fresh = [MiniWoBEnv(pool=pool) for _ in range(num_parallel)], FreshContexts()
    tasks = [f"{names[number % len(names)]}-{number}" for number in range(num_episodes)]
    each_all, each_one = (f"kept pages, {num_parallel} at a time, {what}" for what in ("all tasks", "a task each"))
    own = [f"{names[number % num_parallel % len(names)]}-{number}" for number in range(num_episodes)]
    times: dict[str, Times] = {
        name: {"reset_ms": [], "step_ms": []}
        for name in ("kept pages", each_all, each_one, "fresh contexts", "relaunch")
    }
    rates: dict[str, list[float]] = {name: [] for name in times}
    async with async_playwright() as playwright:
        await play_many(envs, [task for name in names for task in [f"{name}-0"] * num_parallel], _unused())
        await play(fresh, tasks[0], _unused())
        for _ in range(num_rounds):
            rates["kept pages"].append(await play_many(envs[:1], tasks, times["kept pages"]))
            rates[each_all].append(await play_many(envs, tasks, times[each_all]))
            rates[each_one].append(await play_many(envs, own, times[each_one]))
            few = tasks[:num_relaunches]
            rates["fresh contexts"].append(await play_many([fresh], few, times["fresh contexts"]))
            rates["relaunch"].append(await relaunch_many(playwright, names[:num_relaunches], times["relaunch"]))
    for env in (*envs, fresh):
        await env.aclose()
    return {name: {"episodes_per_s": statistics.median(rates[name]), **summary(times[name])} for name in rates}


def _unused() -> Times:
    return {"reset_ms": [], "step_ms": []}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=_TASKS)
    parser.add_argument("--episodes", type=int, default=120)
    parser.add_argument("--relaunches", type=int, default=6)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    load_before = os.getloadavg()
    found = asyncio.run(measure(given.tasks, given.episodes, given.relaunches, given.parallel, given.rounds))
    close_browsers()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    version = subprocess.run([find_chromium(), "--version"], capture_output=True, text=True, check=False)
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "chromium": version.stdout.strip(),
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
