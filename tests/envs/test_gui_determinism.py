"""The same page for the same actions: clock, timers, random numbers, screen; and state keys that say so."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, PageEnv, opened

from agentgym.envs.gui.web_forms.env import WebFormsEnv
from agentgym.errors import ReplayMismatchError

pytestmark = NEEDS_CHROMIUM

RANDOM = "[Math.random(), crypto.randomUUID(), ...crypto.getRandomValues(new Uint8Array(4)), new Date().toISOString()]"


def test_clock_and_random_numbers_come_from_the_seed() -> None:
    with opened("<a href=/>again</a>", seed=5) as env:
        first = env.js(RANDOM)
        env.do("click: again")
        again = env.js(RANDOM)
        env.reset(seed=5)
        assert first == env.js(RANDOM)
        assert first[:-1] == again[:-1]
        assert first[-1].startswith("2026-01-01T10:00:0")
        env.reset(seed=6)
        assert first[:-1] != env.js(RANDOM)[:-1]


def test_only_the_agent_moves_the_mouse() -> None:
    """The window system's own mouse is at the corner, and Chromium tells a page so at any time after it has loaded."""
    page = """<style>body { margin: 0; height: 100vh; }</style><button>Go</button><p></p><script>
    for (const kind of ["pointermove", "pointerover", "pointerout", "mousemove", "mouseover", "mouseenter", "mouseout"])
      addEventListener(kind, () => { document.querySelector("p").textContent += kind + " "; }, true);</script>"""
    with opened(page) as env:
        for seed in range(5):
            env.reset(seed=seed)
            for _ in range(3):
                assert "over" not in env.do("wait: 1").content
            assert "mousemove" in env.do("hover: go").content


def test_the_clock_stands_still_between_turns() -> None:
    page = "<button>x</button><p></p><script>setInterval(() => { p = document.querySelector('p'); p.textContent = Date.now(); }, 50)</script>"
    with opened(page) as env:
        before = env.js("[Date.now(), document.querySelector('p').textContent]")
        time.sleep(0.3)
        after = env.js("[Date.now(), document.querySelector('p').textContent]")
        assert after[0] - before[0] <= 1
        assert after[1] == before[1]
        env.do("wait: 10")
        moved = env.js("[Date.now(), document.querySelector('p').textContent]")
        assert 10_499 <= moved[0] - after[0] <= 10_510
        assert int(moved[1]) >= int(after[1]) + 10_000


def test_timers_run_in_the_order_they_are_due() -> None:
    page = """<button onclick="go()">Go</button><p id=p></p><script>
    const say = (text) => { p.textContent += text + " "; };
    function go() {
      setTimeout(say, 300, "late"); setTimeout(say, 0, "soon"); const off = setTimeout(say, 10, "never"); clearTimeout(off);
      requestAnimationFrame(() => say("frame")); requestIdleCallback(() => say("idle")); setTimeout("say('text')", 20);
      Promise.resolve().then(() => say("promise")); setTimeout(say, 5000, "far");
      let n = 0; const each = setInterval(() => { say(n); if (++n > 2) clearInterval(each); }, 100);
    }</script>"""
    with opened(page) as env:
        env.do("click: go")
        assert "promise soon frame idle text 0 1 late 2" in env.page.text
        env.do("wait: 5")
        assert "2 far" in env.page.text


def test_waiting_for_the_clock_ends() -> None:
    page = "<button onclick=\"let t = Date.now(); while (Date.now() < t + 100); document.title = 'on'\">Go</button>"
    with opened(page) as env:
        assert "Page: on" in env.do("click: go").content


def test_requests_are_awaited_before_time_passes() -> None:
    page = """<button onclick="go()">Go</button><p id=p></p><script>
    async function go() { const t = setTimeout(() => { p.textContent = "too late"; }, 200);
      await fetch("/a"); await fetch("/b"); clearTimeout(t); p.textContent = "in time"; }</script>"""
    with opened({"/": page, "/a": "a", "/b": "b"}) as env:
        env.do("click: go")
        assert "in time" in env.page.text


def test_animations_are_over_at_once() -> None:
    page = """<style>#b { margin-left: 0; transition: margin-left 20s; } .far { margin-left: 300px !important; }</style>
    <button id=b onclick="b.className='far'">Go</button>"""
    with opened(page) as env:
        left = env.page.by_id["go"].box[0]
        env.do("click: go")
        assert env.page.by_id["go"].box[0] == left + 300


def test_the_screen_is_the_same_everywhere() -> None:
    facts = """[innerWidth, innerHeight, devicePixelRatio, navigator.language, new Date(0).getTimezoneOffset(),
    Intl.DateTimeFormat().resolvedOptions().timeZone, matchMedia("(prefers-reduced-motion)").matches]"""
    with opened("x", viewport=(640, 480)) as env:
        assert env.js(facts) == [640, 480, 1, "en-US", 0, "UTC", True]


def test_state_keys_are_the_pages_state() -> None:
    with opened("<input aria-label=A><input type=checkbox aria-label=B><p style='height:3000px'>x</p>") as env:
        fresh = env.state_key()
        env.do("fill: a; 1")
        filled = env.state_key()
        env.do("check: b")
        checked = env.state_key()
        assert len({fresh, filled, checked}) == 3
        env.do("scroll: down")
        assert env.state_key() == checked
        env.do("uncheck: b")
        env.do('fill: a; ""')
        env.do("goto: /")
        assert env.state_key() == fresh


def test_snapshots_are_replayed_and_verified() -> None:
    page = '<button onclick="this.textContent = Math.random()">x</button><input aria-label=A>'
    with opened(page) as env, opened(page) as other:
        env.do("click: x")
        env.do("fill: a; hi")
        snapshot = env.snapshot()
        env.do("fill: a; bye")
        for target in (env, other):
            target.restore(snapshot)
            assert target.state_key() == snapshot.state_key
            assert target.page.by_id["a"].states["value"] == "hi"
        other.site.pages = {"/": "<button>x</button><input aria-label=A>"}
        with pytest.raises(ReplayMismatchError):
            other.restore(snapshot)


def test_both_ways_of_calling_from_several_loops_and_threads() -> None:
    env = WebFormsEnv(kinds=["settings"])

    async def steps() -> list[str]:
        observation, _ = await env.areset(options={"task": 0})
        said = [observation[0].text]
        said += [message.text for message in (await env.astep(env.oracle()))[0]]
        return said

    first = asyncio.run(steps())
    second = asyncio.run(steps())  # another loop
    with ThreadPoolExecutor(1) as thread:
        threads = thread.submit(lambda: asyncio.run(steps())).result()
    said = env.reset(options={"task": 0})[0][0].text
    assert first == second == threads
    assert said == first[0]
    env.close()


def test_a_cancelled_step_leaves_the_environment_usable() -> None:
    async def play() -> Any:
        env = PageEnv("<button onclick='for(;;);'>Hang</button>")
        await env.areset(seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await env.astep("click: hang")
        observation, _ = await env.areset(seed=0)
        await env.aclose()
        return observation[0].text

    assert "[hang]" in asyncio.run(play())


def test_screenshots_and_marks() -> None:
    from agentgym.types import ImagePart

    page = "<style>body{margin:0}</style><button>One</button><button>Two</button>"
    with opened(page, observe=("screenshot",), viewport=(120, 60)) as env:
        message = env.reset(seed=0)[0][0]
        again = env.reset(seed=0)[0][0]
        assert message == again  # to the pixel
        assert [type(part).__name__ for part in message.content] == ["TextPart", "ImagePart"]
    with opened(page, observe=("marks",), viewport=(120, 60)) as env:
        message = env.reset(seed=0)[0][0]
        assert message.text.endswith("Marks: 1 [one], 2 [two]")
        assert isinstance(message.content[1], ImagePart)
        assert env.do("click: 2").content.startswith("Clicked [2].")
        assert env.page.by_id["two"].states["focused"]
    with opened(page, observe=("html", "tree"), max_tokens=100) as env:
        assert "<button>One</button>" in env.reset(seed=0)[0][0].text
