"""Tools that look at shown pictures again: regions, numbers of pictures, refusals, snapshots."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

from agentgym.check.conformance import check_env
from agentgym.envs.seeing.grid import VisualGridEnv
from agentgym.envs.seeing.maze import VisualMazeEnv
from agentgym.tools.look import LookTools, pictures_of
from agentgym.tools.pictures import image_part, png_of
from agentgym.types import ImagePart, Message, Observation, Task, TextPart


def board() -> np.ndarray:
    """Return 448 x 224 pixels, each of another colour: red counts columns, green rows, blue the rest."""
    columns, rows = np.meshgrid(np.arange(448), np.arange(224))
    return np.stack([columns % 256, rows, columns // 256], -1).astype(np.uint8)


class Board(LookTools):
    def start(self, task: Task) -> Observation:
        return (Message("user", (TextPart("Look."), image_part(png_of(board())))),)


def looking(scale: Any = "pixels") -> Board:
    env = Board()
    env.look_scale = scale
    env.reset(seed=0)
    return env


def pixels(part: ImagePart) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(part.png_base64))))


@pytest.mark.parametrize(
    ("scale", "line", "box"),
    [
        ("pixels", "crop: 1, 10, 20, 110, 70", (10, 20, 110, 70)),
        ("pixels", "crop: 1, 0, 0, 448, 224", (0, 0, 448, 224)),
        ("pixels", "crop: 1, 440, 216, 448, 224", (440, 216, 448, 224)),
        ("normalised", "crop: 1, 500, 250, 1000, 1000", (224, 56, 448, 224)),
        ("normalised", "crop: 1, 0, 0, 1000, 1000", (0, 0, 448, 224)),
    ],
)
def test_a_crop_has_the_pixels_of_its_box(scale: Any, line: str, box: tuple[int, ...]) -> None:
    left, top, right, bottom = box
    (message,) = looking(scale).step(line)[0]
    (part,) = pictures_of((message,))
    shown = pixels(part)
    assert (shown[: bottom - top, : right - left] == board()[top:bottom, left:right]).all()
    assert shown.shape[0] % 224 == shown.shape[1] % 224 == 0
    assert (shown[bottom - top :] == 128).all() and (shown[:, right - left :] == 128).all()
    assert message.text.startswith("Picture 2, ") and f"from ({left}, {top})" in message.text
    assert message.result is not None and message.result.box == (left, top, right - left, bottom - top)


def test_zooming_enlarges_and_is_the_same_each_time() -> None:
    env = looking()
    (one,) = pictures_of(env.step("zoom: 1, 100, 100, 156, 128")[0])
    (same,) = pictures_of(env.step("zoom: 1, 100, 100, 156, 128")[0])
    assert one == same
    shown = pixels(one).astype(int)
    assert shown.shape == (224, 448, 3)
    assert abs(shown[112, 224] - board()[114, 128]).max() <= 1  # the middle stays the middle
    (point,) = pictures_of(env.step("look_at: 1, 447, 0")[0])  # at the corner the box moves inwards
    assert abs(pixels(point)[4, 440].astype(int) - board()[1, 446]).max() <= 3


def test_pictures_are_numbered_as_they_are_seen() -> None:
    env = looking()
    both = env.step("crop: 1, 0, 0, 100, 100\ncrop: 2, 10, 10, 60, 60")[0]
    assert [m.text.split(",")[0] for m in both] == ["Picture 2", "Picture 3"]
    assert env.shown[1:] == pictures_of(both)
    (third,) = env.step("crop: 3, 0, 0, 8, 8")[0]
    assert (pixels(pictures_of((third,))[0])[:8, :8] == board()[10:18, 10:18]).all()
    env.reset(seed=0)
    assert "no picture 2; pictures run from 1 to 1" in env.step("crop: 2, 0, 0, 9, 9")[0][0].text


@pytest.mark.parametrize(
    ("scale", "line", "said"),
    [
        ("pixels", "crop: 1, 0, 0, 449, 20", "is outside the picture: x runs from 0 to 448, y from 0 to 224"),
        ("pixels", "crop: 1, -1, 0, 40, 20", "is outside the picture"),
        ("pixels", "crop: 1, 40, 20, 40, 90", "is empty; give left, top, right, bottom"),
        ("pixels", "zoom: 1, 90, 20, 40, 90", "is empty"),
        ("pixels", "zoom: 1, 10, 10, 17, 90", "has 7 x 80 pixels; each side needs at least 8"),
        ("pixels", "crop: 0, 10, 10, 17, 90", "no picture 0; pictures run from 1 to 1"),
        ("pixels", "crop: -1, 10, 10, 17, 90", "no picture -1"),
        ("normalised", "crop: 1, 0, 0, 1001, 20", "x runs from 0 to 1000"),
        ("normalised", "crop: 1, 0.1, 0.2, 0.6, 0.8", "looks like shares of 1"),
        ("normalised", "zoom: 1, 10, 10, 12, 90", "has 2 x 19 pixels"),
        ("pixels", "look_at: 1, 448, 3", "(448, 3) is outside the picture"),
        ("pixels", "crop: 1, 0, 0", "Usage: crop("),
    ],
)
def test_boxes_that_show_nothing_are_refused(scale: Any, line: str, said: str) -> None:
    env = looking(scale)
    (message,), _, is_over, _, info = env.step(line)
    assert said in message.text and not info["is_valid"] and not is_over
    assert len(env.shown) == 1 and message.result is not None and message.result.box is None


@pytest.mark.parametrize("make_env", [lambda: VisualMazeEnv(look=True), lambda: VisualGridEnv(look=True)])
def test_a_game_with_them_passes_the_kit(make_env: Any) -> None:
    report = check_env(make_env, num_episodes=2)
    assert [f"{check.name}: {check.detail}" for check in report.failures] == []


def test_a_snapshot_keeps_the_pictures_that_were_shown() -> None:
    env, other = VisualMazeEnv(look=True), VisualMazeEnv(look=True)
    env.reset(seed=1)
    env.step(env.oracle())
    kept = env.snapshot()
    other.restore(kept)
    line = "crop: 2, 10, 10, 100, 100"
    assert other.step(line)[0] == env.step(line)[0]
    assert other.step("crop: 3, 1, 1, 50, 50")[0] == env.step("crop: 3, 1, 1, 50, 50")[0]
