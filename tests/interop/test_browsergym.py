"""Tasks of BrowserGym on pages of our browsers, by the package's own classes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentgym
from agentgym.envs.gui.chromium import find_chromium, has_chromium
from agentgym.errors import EnvError, UsageError

pytest.importorskip("browsergym.core", reason="needs browsergym-core (the extra browsergym)")
pytestmark = [
    pytest.mark.gui,
    pytest.mark.skipif(not has_chromium(), reason="needs Chromium: apt-get install chromium-headless-shell"),
]

TASKS = '''
import playwright.sync_api
from browsergym.core.task import AbstractBrowserTask


class Count(AbstractBrowserTask):
    """Click a button a number of times; each click pays a part."""

    @classmethod
    def get_task_id(cls):
        return "count"

    def __init__(self, seed, most=4):
        super().__init__(seed)
        self.viewport = {"width": 400, "height": 300}
        self.goal = int(self.random.randint(2, most))
        self.torn_down = False

    def setup(self, page):
        assert isinstance(page, playwright.sync_api.Page)
        heard = []
        page.context.expose_function("heard", lambda text: heard.append(text))
        page.set_content("<title>Count</title><button onclick='this.textContent++; heard(1)'>0</button>")
        with page.expect_console_message(lambda message: "ready" in message.text) as caught:
            page.evaluate("console.log('ready')")
        assert caught.value.text == "ready"
        assert page.locator("button").inner_text() == "0" and page.query_selector("p") is None
        self.page, self.heard, self.seen = page, heard, 0
        page.mark = "ours"
        return f"Click the button {self.goal} times.", {}

    def validate(self, page, chat_messages):
        assert page.mark == "ours" and page == self.page
        assert [message["role"] for message in chat_messages[:2]] == ["assistant", "user"]
        clicks = int(page.get_by_role("button").text_content())
        if clicks == 13:
            raise RuntimeError("the counter jammed")
        reward, self.seen = (clicks - self.seen) / self.goal, clicks
        assert len(self.heard) == clicks
        if chat_messages[-1]["role"] == "assistant" and len(chat_messages) > 2:
            return float(chat_messages[-1]["message"] == "done"), True, "", {}
        return reward, clicks == self.goal, "" if clicks != 1 else "Go on!", {}

    def teardown(self):
        self.torn_down = True


class Waits(Count):
    """Waits for what never comes."""

    def setup(self, page):
        page.set_default_timeout(200)
        page.wait_for_selector("#never")
'''


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    return tmp_path / "tasks.py"


def test_its_task_is_played_by_our_tools_and_graded_by_itself(tasks: Path) -> None:
    env: Any = agentgym.make(
        "agentgym/BrowserGym-v0", task=f"{tasks}:Count", task_kwargs={"most": 3}, actions=["elements", "pages"]
    )
    said, _ = env.reset(seed=1)
    assert said[0].text.startswith("Click the button 2 times.") and "button" in said[0].text
    theirs = env._theirs
    assert "which has no sites" in env.step("goto: http://elsewhere.localhost/")[0][0].text
    replies, reward, terminated, *_ = env.step("click: 0")
    assert (reward, terminated) == (0.5, False) and replies[-1].text.endswith("The user says: Go on!")
    *_, reward, terminated, truncated, info = env.step("click: 1")
    assert (reward, terminated, truncated, info["success"]) == (0.5, True, False, True)
    env.close()
    assert theirs.torn_down


def test_equal_seeds_are_equal_episodes(tasks: Path) -> None:
    played = []
    for _ in range(2):
        env = agentgym.make("agentgym/BrowserGym-v0", task=f"{tasks}:Count")
        said, _ = env.reset(seed=5)
        keys = [env.state_key()]
        said_then = env.step("click: 0")[0]
        played.append((said[0].text, said_then[-1].text, keys, env.state_key()))
        env.close()
    assert played[0] == played[1]


def test_an_answer_is_a_message_in_its_chat(tasks: Path) -> None:
    env = agentgym.make("agentgym/BrowserGym-v0", task=f"{tasks}:Count")
    env.reset(seed=0)
    *_, reward, terminated, _, info = env.step("done: done")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.close()


def test_what_its_code_raises_is_no_reward(tasks: Path) -> None:
    env: Any = agentgym.make("agentgym/BrowserGym-v0", task=f"{tasks}:Count")
    env.reset(seed=0)
    env._theirs.page.evaluate("document.querySelector('button').textContent = 12")
    with pytest.raises(EnvError, match="the counter jammed"):
        env.step("click: 12")
    env.close()
    waits = agentgym.make("agentgym/BrowserGym-v0", task=f"{tasks}:Waits")
    with pytest.raises(EnvError, match=r"setup.*Timeout 200ms"):
        waits.reset(seed=0)
    waits.close()


def test_registered_tasks_and_sites(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<h1>Welcome</h1>", encoding="utf-8")
    kwargs = {"start_url": "http://here.localhost/", "goal": "Look around."}
    env = agentgym.make(
        "agentgym/BrowserGym-v0", task="openended", task_kwargs=kwargs, sites={"here.localhost": str(tmp_path)}
    )
    said, _ = env.reset(seed=0)
    assert said[0].text.startswith("Look around.") and "Welcome" in said[0].text
    assert env.step("done: seen")[1:3] == (0.0, True)
    env.close()


MINIWOB = ["browsergym.miniwob", "miniwob"]
needs_miniwob = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in MINIWOB), reason=f"needs {' and '.join(MINIWOB)}"
)

ALONE = """
import json, sys
from pathlib import Path
from playwright.sync_api import sync_playwright
from browsergym.miniwob import all as tasks

chromium, html, names = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    goals = []
    for name, seed in names:
        page = browser.new_page()
        task = getattr(tasks, name)(seed=seed, base_url=f"{(html / 'miniwob').as_uri()}/")
        goals.append(task.setup(page)[0])
    print(json.dumps(goals))
"""


def made_from_miniwob(task: str) -> agentgym.Env:
    kwargs = {"base_url": "http://miniwob.localhost/miniwob/"}
    pages = {"miniwob.localhost": str(miniwob_pages())}
    return agentgym.make("agentgym/BrowserGym-v0", task=f"miniwob.{task}", task_kwargs=kwargs, sites=pages)


def miniwob_pages() -> Path:
    found = importlib.util.find_spec("miniwob")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "html"


@needs_miniwob
def test_the_tasks_of_browsergym_miniwob() -> None:
    for task, action, reward in (("click-test", "click: click-me", 1.0), ("click-test-2", "click: two", 0.0)):
        env = made_from_miniwob(task)
        env.reset(seed=3)
        *_, paid, terminated, _, info = env.step(action)
        assert (paid, terminated, info["success"]) == (reward, True, reward == 1.0)
        env.close()


@needs_miniwob
def test_goals_equal_those_of_browsergym_alone() -> None:
    named = {"ClickCheckboxesTask": "click-checkboxes", "EnterTextTask": "enter-text", "ClickLinkTask": "click-link"}
    pairs = [(name, seed) for name in named for seed in (0, 1, 2)]
    command = [sys.executable, "-c", ALONE, str(find_chromium()), str(miniwob_pages()), json.dumps(pairs)]
    goals = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for (name, seed), goal in zip(pairs, goals, strict=True):
        env = made_from_miniwob(named[name])
        said, _ = env.reset(seed=seed)
        assert said[0].text.startswith(f"{goal}\n")
        env.close()
    assert len(set(goals)) == len(goals)


def test_policies_are_evaluated_in_it(tasks: Path) -> None:
    kwargs = {"task": f"{tasks}:Count", "max_turns": 3}
    found = agentgym.evaluate("agentgym/BrowserGym-v0", "random", episodes=6, kwargs=kwargs)
    assert (found.summary.num_episodes, found.summary.num_failed) == (6, 0)


def test_wrong_settings(tasks: Path) -> None:
    def refused(match: str, **kwargs: Any) -> None:
        with pytest.raises(UsageError, match=match):
            agentgym.make("agentgym/BrowserGym-v0", **kwargs)

    refused("unknown task of BrowserGym", task="opened")
    refused("has no 'Counts'", task=f"{tasks}:Counts")
    refused("least", task=f"{tasks}:Count", task_kwargs={"least": 1})
    refused("neither a folder nor HOST:PORT", task="openended", sites={"a.localhost": "nowhere"})
