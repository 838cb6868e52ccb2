"""Episodes that begin on a page that is open: the same as on a fresh one, and never after one that left anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from playwright.async_api import Error as PlaywrightError
from testkit.gui_pages import NEEDS_CHROMIUM, PageEnv

from agentgym.envs.gui.pool import PoolConfig, close_browsers, driver
from agentgym.types import Task

pytestmark = NEEDS_CHROMIUM

PAGE = """<title>Game</title><p id=out></p><input aria-label=Name><button onclick="out.textContent = Math.random()">Draw</button>
<button onclick="localStorage.x = 1">Store</button><button onclick="document.cookie = 'x=1'">Bake</button>
<button onclick="indexedDB.open('x')">Data</button><button onclick="caches.open('x')">Cache</button>
<button onclick="window.open('/')">Tab</button>
<button onclick="document.open()">Wipe</button><a href=/>Again</a>
<script>
  loaded = Math.random(); setTimeout(() => { out.textContent += " timer"; }, 1200);
  begin = () => { out.textContent = Date.now(); document.querySelector("input").value = ""; }
</script>"""


class Game(PageEnv):
    """A page that begins a new episode by a function of its own."""

    keeps = True
    num_begun = 0

    def kept_page(self, task: Task) -> str | None:
        return "game" if self.keeps else None

    async def set_up(self, task: Task) -> str:
        self.num_begun = await self.evaluate("window.numBegun = (window.numBegun || 0) + 1")
        await self.evaluate("begin()")
        return "Play."


@pytest.fixture
def game() -> Iterator[Game]:
    env = Game(PAGE)
    yield env
    env.close()
    close_browsers()


def played(env: Game, seed: int, keeps: bool) -> list[Any]:
    env.keeps = keeps
    observation, _ = env.reset(seed=seed)
    seen: list[Any] = [env.num_begun > 1, observation[0].text, env.state_key()]
    for action in ("click: draw", "fill: name; Ann", "wait: 1", "click: draw"):
        seen += [env.do(action).content, env.state_key()]
    return seen


def test_an_episode_on_a_kept_page_is_as_one_on_a_fresh_page(game: Game) -> None:
    fresh = {seed: played(game, seed, keeps=False) for seed in (1, 2)}
    assert fresh[1] != fresh[2]
    assert "timer" in str(fresh[1])
    assert played(game, 3, keeps=True)[0] is False, "none is kept yet"
    for seed in (1, 2, 1):
        kept = played(game, seed, keeps=True)
        assert kept[0] is True
        assert kept[1:] == fresh[seed][1:]


@pytest.mark.parametrize("what", ["store", "bake", "data", "cache", "tab", "again", "wipe"])
def test_what_an_episode_leaves_behind_is_thrown_away_with_its_page(game: Game, what: str) -> None:
    game.reset(seed=0)
    game.do("click: draw")
    game.reset(seed=1)
    assert game.num_begun == 2
    game.do(f"click: {what}")
    game.reset(seed=2)
    assert game.num_begun == 1


def test_a_page_whose_process_died_is_not_kept(game: Game) -> None:
    game.reset(seed=0)
    game.reset(seed=1)
    assert game.num_begun == 2
    with suppress(PlaywrightError):
        driver().call(game.tab.page.goto("chrome://crash"))
    game.reset(seed=2)
    assert game.num_begun == 1


def test_no_more_pages_are_kept_than_asked_for() -> None:
    pool = PoolConfig(num_kept=1)
    one, two = Game(PAGE, pool=pool), Game(PAGE, pool=pool)
    for env in (one, two):
        env.reset(seed=0)
    assert [one.num_begun, two.num_begun] == [1, 1], "each has a page of its own while it plays"
    for env in (one, two):
        env.end_episode()
    one.reset(seed=0)
    two.reset(seed=0)
    assert [one.num_begun, two.num_begun] == [2, 1], "one of two was kept"
    one.close()
    two.close()
    close_browsers()
