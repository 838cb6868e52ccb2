"""What pages and crashes can do: nothing to other episodes, nothing to the machine, and the agent is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, PageEnv, opened

from agentgym.envs.gui.browser import PageLimits
from agentgym.envs.gui.pool import PoolConfig, close_browsers
from agentgym.errors import EnvError
from agentgym.processes import guard
from agentgym.rollout.loop import run_episode
from agentgym.rollout.request import RolloutRequest
from agentgym.types import Message, Status, Task, ToolCall, Turn

pytestmark = NEEDS_CHROMIUM

STRICT = PoolConfig(num_ready=1, limits=PageLimits(script_s=1.5, memory_mb=400, num_tabs=3, num_dialogs=4))
HUNGRY = PoolConfig(num_ready=1, limits=PageLimits(script_s=30, memory_mb=300))
OTHER = PoolConfig(num_ready=1, episodes_per_browser=999)


@pytest.fixture(autouse=True, scope="module")
def _end_the_browsers() -> Iterator[None]:
    yield
    close_browsers()


def is_running(pid: int) -> bool:
    return bool(guard.start_ticks(pid))


def browsers(root: int) -> list[int]:
    """The main processes of the Chromiums below a process."""
    found = []
    for pid in guard.below(root):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        words = command.split(b"\0")
        is_browser = b"--remote-debugging-pipe" in words and guard.__file__.encode() not in words
        if is_browser and b"--type=" not in command and b"crashpad" not in words[0]:
            found.append(pid)
    return found


def until(holds: object, what: str, patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------- other episodes

KEEPER = """<script>
const opens = (name) => new Promise((done) => { const r = indexedDB.open(name, 1); r.onsuccess = () => done(r.result);
  r.onupgradeneeded = () => r.result.createObjectStore("s"); });
async function leave() {
  document.cookie = "c=1; max-age=9999"; localStorage.l = 1; sessionStorage.s = 1;
  (await opens("db")).close(); await (await caches.open("k")).put("/x", new Response("kept"));
  if (navigator.serviceWorker) await navigator.serviceWorker.register("/sw.js").catch(() => {});
}
async function found() {
  const workers = navigator.serviceWorker ? (await navigator.serviceWorker.getRegistrations()).length : 0;
  return [document.cookie, localStorage.l, sessionStorage.s, (await indexedDB.databases()).length,
    (await caches.keys()).length, workers, history.length].map(String);
}
</script><a href=/two>Two</a>"""
EMPTY = ["", "undefined", "undefined", "0", "0", "0", "2"]


class WithWorkers(PageEnv):
    """Pages may have service workers here."""

    def __init__(self) -> None:
        from agentgym.envs.gui.determinism import ContextKind
        from agentgym.envs.gui.site import Response

        worker = Response(body=b"onfetch = () => {}", content_type="text/javascript")
        super().__init__({"/": KEEPER, "/two": "two", "/sw.js": worker})
        self.kind = ContextKind(service_workers=True)


def test_nothing_of_an_episode_is_seen_by_others() -> None:
    env, beside = WithWorkers(), WithWorkers()
    try:
        env.reset(seed=0)
        beside.reset(seed=0)
        assert env.js("found()") == EMPTY
        env.js("leave()")
        env.do("click: two")
        env.do("goto: /")
        left = env.js("found()")
        assert left == ["c=1", "1", "1", "1", "1", "1", "4"]
        assert beside.js("found()") == EMPTY
        env.reset(seed=0)
        assert env.js("found()") == EMPTY
    finally:
        env.close()
        beside.close()


# --------------------------------------------------------------------------------------------------- bad behaviour


def told(button: str, script: str, pool: PoolConfig = STRICT) -> tuple[str, PageEnv]:
    """What the agent reads after pressing a button with that script; the environment can go on."""
    env = PageEnv({"/": f'<title>here</title><button onclick="{script}">{button}</button>', "/two": "two"}, pool=pool)
    env.reset(seed=0)
    return env.do(f"click: {button}").content, env


def test_a_script_without_end_is_stopped() -> None:
    said, env = told("go", "for(;;);")
    assert "A script of the page did not end within 1.5 s and was stopped." in said
    assert env.page.title == "here"
    env.close()


def test_a_timer_without_end_is_stopped() -> None:
    said, env = told("go", "setTimeout(() => { for(;;); }, 100)")
    assert "did not end within 1.5 s and was stopped" in said
    env.close()


def test_timers_that_set_timers_do_not_hold_up() -> None:
    said, env = told("go", "let n = 0; (function again() { document.title = ++n; setTimeout(again); })()")
    assert "stopped" not in said
    assert 100 < int(env.page.title) < 200  # at most one in 4 ms of half a second
    env.close()


def test_promises_without_end_are_stopped() -> None:
    said, env = told("go", "(function again() { Promise.resolve().then(again); })()")
    assert "stopped" in said or "crashed" in said
    assert env.do("goto: /two").error_type is None
    env.close()


def test_dialogs_without_end_are_stopped_and_told() -> None:
    said, env = told("go", "for(;;) alert('Sign up!')")
    assert "The page said: 'Sign up!'" in said
    assert "The page opened 4 dialogs in one turn; its script was stopped." in said
    assert env.do("goto: /two").error_type is None
    env.close()


def test_dialogs_are_answered_and_told() -> None:
    script = "document.title = [confirm('Sure?'), prompt('Name?', 'Ann')]"
    said, env = told("go", script)
    assert "The page asked: 'Sure?'; the answer was OK." in said
    assert "The page asked: 'Name?'; the answer was 'Ann'." in said
    assert env.page.title == "true,Ann"
    env.js("void (onbeforeunload = (event) => { event.preventDefault(); })")
    assert "whether to leave; the answer was yes" in env.do("goto: /two").content
    env.close()


def test_pop_ups_are_few() -> None:
    _, env = told("go", "for (let n = 0; n < 100; n++) window.open('/two')")
    for _ in range(3):  # one for a click, or at most so many as there may be
        env.do("switch_tab: 1")
        said = env.do("click: go").content
    assert "no more than 3 may be open" in said
    assert len(env.session.tabs) == 3
    env.close()


def test_a_page_that_takes_all_memory_crashes_alone() -> None:
    beside = PageEnv("<title>beside</title><button>x</button>", pool=HUNGRY)
    beside.reset(seed=0)
    eat = "window.a = []; for (;;) window.a.push(new Uint8Array(1e7).fill(1))"
    said, env = told("go", eat, HUNGRY)
    assert "crashed" in said
    assert "an empty tab is open instead" in said
    assert "Page: here" in env.do("goto: /").content
    assert beside.do("click: x").error_type is None
    assert beside.session.browser is env.session.browser
    env.close()
    beside.close()


@pytest.mark.parametrize("url", ["http://example.com/x", "https://example.com/", "http://127.0.0.1:8099/",
    "file:///etc/passwd", "data:text/html,<title>there</title>", "chrome://settings"])  # fmt: skip
def test_a_page_leads_nowhere_else(url: str) -> None:
    said, env = told("go", f"location = '{url}'")
    assert "there" not in env.page.title
    assert "root:" not in said
    if url.startswith("http"):
        assert "it is not part of this task. Sites: page.localhost" in said
    else:
        assert env.page.url == "http://page.localhost/"
    assert env.do("goto: /two").error_type is None
    env.close()


def test_requests_of_all_kinds_go_nowhere_else() -> None:
    async def listen() -> tuple[list[str], list[str]]:
        heard: list[str] = []

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append("heard")
            writer.close()

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        env = PageEnv("<body></body>")
        await env.areset(seed=0)
        tries = f"""(async () => {{
          const results = [], at = '127.0.0.1:{port}';
          await fetch('http://' + at).then(r => results.push(r.status), () => results.push('failed'));
          navigator.sendBeacon('http://' + at, 'x');
          new Image().src = 'http://' + at;
          await new Promise(done => {{ const s = new WebSocket('ws://' + at); s.onerror = s.onopen = e => {{ results.push(e.type); done(); }}; }});
          const code = `fetch('http://${{at}}').then(r => postMessage(r.type), () => postMessage('failed'))`;
          await new Promise(done => {{ const w = new Worker(URL.createObjectURL(new Blob([code]))); w.onmessage = e => {{ results.push(e.data); done(); }}; }});
          return results.map(String);
        }})()"""
        from agentgym.envs.gui.pool import driver

        results = await driver().acall(env.evaluate(tries))
        await env.aclose()
        server.close()
        return results, heard

    results, heard = asyncio.run(listen())
    assert results == ["failed", "error", "failed"]
    assert heard == []


# ---------------------------------------------------------------------------------------------------------- crashes


def test_a_killed_browser_is_an_env_error_and_the_next_episode_has_a_fresh_one() -> None:
    with opened("<button>x</button>", pool=OTHER) as sibling, opened("<button>x</button>", pool=STRICT) as env:
        victim = env.session.browser
        assert sibling.session.browser is not victim
        target = next(pid for pid in browsers(os.getpid()) if parent_of(pid) == guard_of(env))
        os.kill(target, signal.SIGKILL)
        with pytest.raises(EnvError, match="the browser has crashed or was killed"):
            for _ in range(3):  # the first may still be answered
                env.do("click: x")
        assert sibling.do("click: x").error_type is None
        env.reset(seed=0)
        assert env.session.browser is not victim
        assert env.do("click: x").error_type is None


def guard_of(env: PageEnv) -> int:
    """The guard whose memory limit is the environment's."""
    wanted = str(env.session.browser.limits.memory_mb).encode()
    for pid in guard.below(os.getpid()):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if guard.__file__.encode() in words and words[6:7] == [wanted]:
            return pid
    raise LookupError("no guard")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Killer:
    """An agent that kills the browser before its second action."""

    def __init__(self, env: PageEnv) -> None:
        self._env, self._turn = env, 0

    def begin(self, observation: object, tools: object) -> None:
        self._turn = 0

    async def decide(self) -> object:
        from agentgym.rollout.agent import Decision

        self._turn += 1
        if self._turn == 2:
            parent = guard_of(self._env)
            for pid in browsers(os.getpid()):
                if parent_of(pid) == parent:
                    os.kill(pid, signal.SIGKILL)
        return Decision(Turn(action=Message("assistant", "", (ToolCall("click", {"id": "x"}),))))

    def observe(self, replies: object, played: object = None) -> None:
        pass

    async def end(self) -> None:
        pass


def test_an_episode_whose_browser_is_killed_has_no_reward() -> None:
    async def play() -> tuple[Status, float | None, str]:
        env = PageEnv("<button>x</button>", pool=STRICT, max_turns=5)
        task = Task(id="t", split="train", seed=0)
        played = await run_episode(env, RolloutRequest(task=task, make_agent=lambda *_: Killer(env)))  # type: ignore[arg-type]
        await env.aclose()
        return played.status, played.reward, played.error or ""

    status, reward, error = asyncio.run(play())
    assert (status, reward) == (Status.ENV_ERROR, None)
    assert "crashed or was killed" in error


OWNER = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
from testkit.gui_pages import PageEnv
env = PageEnv("<button onclick='for(;;);'>x</button>")
env.reset(seed=0)
print("ready", flush=True)
while True:  # a signal that arrives just before a read that waits is handled after it, which may be never
    time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_browser_outlives_its_owner(number: signal.Signals) -> None:
    path = os.pathsep.join(sys.path)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == b"ready\n"
        below = guard.below(owner.pid)
        (browser,) = browsers(owner.pid)
        words = Path(f"/proc/{browser}/cmdline").read_bytes().decode().split("\0")
        profile = next(Path(word.partition("=")[2]) for word in words if word.startswith("--user-data-dir="))
        assert profile.is_dir()
        owner.send_signal(number)
        owner.wait(120)
        until(lambda: not any(is_running(pid) for pid in below), "processes outlive their owner")
        if number == signal.SIGKILL:  # on others the owner itself has time for it, or is cut short
            until(lambda: not profile.exists(), "the profile outlives its browser")
    finally:
        owner.kill()
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()


def test_a_killed_guard_takes_the_browser_along() -> None:
    with opened("<button>x</button>", pool=STRICT) as env:
        parent = guard_of(env)
        below = guard.below(parent)
        os.kill(parent, signal.SIGKILL)
        until(lambda: not any(is_running(pid) for pid in below), "processes outlive their guard")
        with pytest.raises(EnvError, match="crashed or was killed"):
            env.do("click: x")
