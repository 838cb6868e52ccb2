"""Agents that see a page: screenshots in sizes that no processor changes, points at several scales, and marks."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, opened

from agentgym import make
from agentgym.check.episodes import play
from agentgym.check.policies import oracle_action
from agentgym.errors import ConfigError, UsageError
from agentgym.tools.look import pictures_of
from agentgym.types import ImagePart, Message, Observation

pytestmark = NEEDS_CHROMIUM
PAGE = """<style>body{margin:0} div,button,input{position:absolute;border:0;padding:0;color:transparent}</style>
<button style="left:20px;top:30px;width:90px;height:40px;background:#ff0000" onclick="document.title='red '+event.detail">A</button>
<button style="left:200px;top:150px;width:70px;height:50px;background:#0000ff" onclick="document.title='blue'">B</button>
<input aria-label=Name style="left:150px;top:20px;width:100px;height:30px;background:#00ff00">"""
COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255), "lime": (0, 255, 0)}
SCREENS: list[dict[str, Any]] = [
    {"viewport": (332, 214)},
    {"viewport": (1024, 768)},
    {"viewport": (640, 480), "picture": (448, 336)},
    {"viewport": (640, 480), "picture": (320, 320), "coordinates": "normalised"},
    {"viewport": (332, 214), "coordinates": "normalised"},
    {"viewport": (900, 500), "picture": "page"},
]
SEEING: dict[str, Any] = {"observe": ("screenshot",), "actions": ("screen",)}


def picture_in(observation: Observation) -> np.ndarray:
    from PIL import Image

    parts = [part for m in observation for part in m.content if isinstance(part, ImagePart)]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(parts[-1].png_base64))).convert("RGB"))


def seen_at(env: Any, colour: str, picture: np.ndarray) -> tuple[int, int]:
    """Return the middle of what is seen in a colour, as the agent's coordinates, read off the picture alone."""
    rows, columns = np.nonzero((np.abs(picture.astype(int) - COLOURS[colour]) < 40).all(-1))
    x, y = int(columns.mean()), int(rows.mean())
    height, width, _ = picture.shape
    is_pixels = env.screen.scale == "pixels"
    return (x, y) if is_pixels else (round(1000 * (x + 0.5) / width), round(1000 * (y + 0.5) / height))


@pytest.mark.parametrize("screen", SCREENS)
def test_a_point_of_the_picture_hits_what_is_seen_there(screen: dict[str, Any]) -> None:
    with opened(PAGE, **SEEING, **screen) as env:
        picture = picture_in(env.reset(seed=0)[0])
        assert (picture.shape[1], picture.shape[0]) == (env.screen.width, env.screen.height)
        for colour, title in (("red", "red 1"), ("blue", "blue")):
            x, y = seen_at(env, colour, picture)
            env.do(f"click: {x}, {y}")
            assert env.page.title == title
        x, y = seen_at(env, "red", picture)
        env.do(f"double_click: {x}, {y}")
        assert env.page.title == "red 2"
        x, y = seen_at(env, "lime", picture)
        env.do(f"click: {x}, {y}")
        env.do("type: Ann")
        assert env.page.find("textbox", "Name").states["value"] == "Ann"


@pytest.mark.parametrize("screen", SCREENS[:-1])
def test_both_sides_of_a_screenshot_fit_a_processor(screen: dict[str, Any]) -> None:
    with opened(PAGE, **SEEING, **screen) as env:
        height, width, _ = picture_in(env.reset(seed=0)[0]).shape
        if "picture" not in screen:
            assert width % 28 == height % 28 == width % 32 == height % 32 == 0
        assert (width, height) == tuple(screen.get("picture", (width, height)))


def test_the_edges_of_the_picture_are_the_edges_of_the_page() -> None:
    edges = "<script>addEventListener('click', e => document.title = e.clientX + ' ' + e.clientY)</script>"
    for scale, first, last in (("pixels", "0, 0", "895, 671"), ("normalised", "0, 0", "1000, 1000")):
        with opened(edges, **SEEING, viewport=(1024, 768), coordinates=scale) as env:
            titles = []
            for at in (first, last):
                env.do(f"click: {at}")
                titles.append([int(float(side)) for side in env.page.title.split()])
            assert titles == [[0, 0], [1022, 766]]  # under the middles of the picture's first and last pixel


@pytest.mark.parametrize(
    ("screen", "call", "said"),
    [
        (SCREENS[0], "click: 448, 3", "(448, 3) is outside the picture: x runs from 0 to 447, y from 0 to 223"),
        (SCREENS[0], "click: 400, 3", "(400, 3) is on the grey margin, outside the page"),
        (SCREENS[3], "click: 10, 900", "(10, 900) is on the grey margin"),
        (SCREENS[3], "click: 1200, 9", "x runs from 0 to 1000"),
        (SCREENS[3], "click: 0.4, 0.3", "looks like shares of 1"),
        (SCREENS[1], "drag: 5, 5, 900, 5", "(900, 5) is outside the picture"),
        (SCREENS[1], "scroll: down; 5", "give both x and y"),
        (SCREENS[1], "hover: -3, 5", "(-3, 5) is outside the picture"),
    ],
)
def test_points_outside_are_refused_with_the_range(screen: dict[str, Any], call: str, said: str) -> None:
    with opened(PAGE, **SEEING, **screen) as env:
        before = env.state_key()
        (message,), reward, is_over, _, info = env.step(call)
        assert said in message.text and not info["is_valid"] and not is_over and reward == 0
        assert env.state_key() == before


def test_dragging_and_scrolling_at_points() -> None:
    page = """<style>body{margin:0}</style><div tabindex=0 aria-label=Box style="position:absolute;left:10px;top:10px;
    width:200px;height:100px;overflow:auto" onscroll="document.title='box '+(scrollTop>0)"><p style=height:900px>x</p></div>
    <p style=height:3000px></p><script>
    addEventListener('mousedown', e => window.from = e.clientX + ' ' + e.clientY)
    addEventListener('mouseup', e => document.title = window.from + ' ' + e.clientX + ' ' + e.clientY)</script>"""
    with opened(page, **SEEING, viewport=(1024, 768)) as env:
        env.do("drag: 350, 350, 525, 525")
        assert env.page.title == "400 400 600 600"
        env.do("scroll: down; 100; 50")
        assert env.page.title.startswith("box") and env.page.scroll == (0, 0)
        env.do("scroll: down")
        assert env.page.scroll[1] > 0


def test_marks_are_numbers_to_click_and_fill() -> None:
    seeing: dict[str, Any] = {"observe": ("set_of_marks",), "actions": ("marks", "answer"), "viewport": (1024, 768)}
    with opened(PAGE, **seeing) as env:
        (message,) = env.reset(seed=0)[0]
        assert message.text.endswith("Marks: 1 to 3") and "[" not in message.text  # no names without a tool for ids
        assert picture_in((message,)).shape == (672, 896, 3)
        env.do("click_mark: 2")
        assert env.page.title == "blue"
        env.do("fill_mark: 3; Ann")
        assert env.page.find("textbox", "Name").states["value"] == "Ann"
        (result,) = env.step("click_mark: 1")[0]
        assert result.result is not None and result.result.box == (18, 26, 79, 35)  # as it is drawn: 7/8 of the page
        assert "no mark 9; marks run from 1 to 3" in env.do("click_mark: 9").content


def test_several_parts_come_in_one_observation() -> None:
    with opened(PAGE, observe=("tree", "screenshot", "set_of_marks"), viewport=(332, 214)) as env:
        (message,) = env.reset(seed=0)[0]
        assert [type(part).__name__ for part in message.content] == ["TextPart", "ImagePart", "ImagePart"]
        assert "[name]" in message.text and "Marks: 1 [a]" in message.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"observe": ("tree",), "actions": ("screen",)}, "actions=screen needs screenshot or marks in observe"),
        ({"observe": ("screenshot",), "actions": ("marks",)}, "actions=marks needs marks in observe"),
        ({"observe": ("screenshot",), "actions": ("screen", "elements")}, "same names as other sets of actions: click"),
        ({"observe": ("screenshot",), "picture": (500, 300)}, "picture 500 x 300 would be resized by every processor"),
        ({"observe": ("screenshot",), "picture": (448,)}, "picture is a width and a height"),
        ({"observe": ("screenshot",), "picture": "half"}, "unknown picture 'half'"),
        ({"observe": ("screenshot",), "coordinates": "percent"}, "unknown scale of coordinates 'percent'"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make("agentgym/WebForms-v0", **arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "WebForms",
            {"kinds": ["remove", "calendar", "board", "frame", "look_up"], "coordinates": "normalised"},
        ),
        ("MiniWoB", {"task": ["click-button", "enter-text", "click-checkboxes"], "brief": True}),
    ],
)
def test_the_oracle_points_at_pictures(name: str, arguments: dict[str, Any]) -> None:
    env = make(f"agentgym/{name}-v0", observe=["screenshot"], actions=["screen"], **arguments)
    for task in env.tasks("train")[:6]:
        assert play(env, oracle_action, task, np.random.default_rng(0)).is_success, task
    assert isinstance(env.reset(seed=0)[0][0], Message)
    env.close()


@pytest.mark.parametrize("kind", ["list", "settings"])
def test_an_oracle_that_cannot_point_says_so(kind: str) -> None:
    env = make("agentgym/WebForms-v0", kinds=[kind], observe=["screenshot"], actions=["screen"])
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"actions=elements"):
        for _ in range(20):
            env.step(env.oracle())
    env.close()


def test_a_screenshot_is_looked_at_again() -> None:
    page = "<style>body{margin:0;background:#ff0000}</style>"
    with opened(page, observe=("screenshot",), actions=("screen", "look"), viewport=(1024, 768)) as env:
        (message,) = env.step("crop: 1, 100, 100, 200, 150")[0]
        crop, screen = pictures_of((message,))
        cut = np.asarray(picture_in((Message("tool", (crop,)),)))
        assert (cut[:50, :100] == (255, 0, 0)).all() and picture_in((message,)).shape == (672, 896, 3)
        assert message.result is not None and message.result.box == (100, 100, 100, 50)
        assert env.shown[1:] == (crop, screen)
