"""Games that only a picture shows: nothing in their texts, sizes that no processor changes, coordinates, snapshots."""

from __future__ import annotations

import base64
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from agentgym import make
from agentgym.check.conformance import check_env
from agentgym.check.episodes import play
from agentgym.check.policies import oracle_action
from agentgym.cli.main import app
from agentgym.envs.games.maze import STEPS, Direction, Plan, moved
from agentgym.envs.seeing.grid import VisualGridEnv
from agentgym.envs.seeing.maze import VisualMazeEnv
from agentgym.errors import ConfigError, UsageError
from agentgym.tools.pictures import png_size
from agentgym.types import ImagePart, Observation, TextPart

WORLDS: list[tuple[str, dict[str, Any]]] = [
    ("VisualMaze", {}),
    ("VisualMaze", {"actions": "click", "coordinates": "normalised", "size": 5, "loops": 0.0}),
    ("VisualMaze", {"actions": "both", "picture": 64, "size": 2, "loops": 1.0}),
    ("VisualGrid", {}),
    ("VisualGrid", {"actions": "pick", "size": 3, "partial": 0.3}),
    ("VisualGrid", {"coordinates": "normalised", "size": 16, "picture": 448}),
]


def pixels_of(observation: Observation) -> np.ndarray:
    from PIL import Image

    (part,) = (p for m in observation for p in m.content if isinstance(p, ImagePart))
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(part.png_base64))))


def texts_of(observation: Observation) -> list[str]:
    return [part.text for message in observation for part in message.content if isinstance(part, TextPart)]


@pytest.mark.parametrize(("name", "arguments"), WORLDS)
def test_the_kit_finds_nothing_wrong(name: str, arguments: dict[str, Any]) -> None:
    report = check_env(f"agentgym/{name}-v0", arguments=arguments, num_episodes=3)
    assert [f"{check.name}: {check.detail}" for check in report.failures] == []


@pytest.mark.parametrize("name", ["VisualMaze", "VisualGrid"])
def test_blank_pictures_have_the_same_size_and_show_nothing(name: str) -> None:
    env, seen = (make(f"agentgym/{name}-v0", picture=64, blank=blank) for blank in (True, False))
    first = {pixels_of(env.reset(seed=seed)[0]).tobytes() for seed in range(5)}
    assert len(first) == 1
    (white, drawn), other = (one.reset(seed=0)[0] for one in (env, seen)), env.step(env.oracle())[0]
    assert pixels_of(white).shape == pixels_of(drawn).shape and pixels_of(white).min() == 255 > pixels_of(drawn).min()
    assert texts_of(white) == texts_of(drawn)
    if name == "VisualMaze":
        assert pixels_of(other).min() == 255


@pytest.mark.parametrize(("name", "arguments"), WORLDS)
def test_the_oracle_wins_on_many_seeds(name: str, arguments: dict[str, Any]) -> None:
    env = make(f"agentgym/{name}-v0", **arguments)
    for task in env.tasks("valid")[:25]:
        assert play(env, oracle_action, task, np.random.default_rng(0)).is_success, task


def test_texts_of_a_maze_are_the_same_in_every_state() -> None:
    """A policy without sight can only choose a sequence of moves: what it reads is a function of the turn alone."""
    env = VisualMazeEnv(actions="both", max_turns=10)
    read: set[tuple[str, ...]] = set()
    rng = np.random.default_rng(0)
    for task in env.tasks("train")[:40]:
        observation, _ = env.reset(options={"task": task})
        read.add(("start", *texts_of(observation)))
        for _ in range(10):
            moves = ["move: north", "move: east", "move: south", "move: west", f"click: {int(rng.integers(224))}, 9"]
            observation, _, is_over, is_cut, info = env.step(moves[int(rng.integers(5))])
            read.add(("turn", *texts_of(observation)))
            assert info["is_valid"] and [m.result.error_type for m in observation if m.result] == [None]
            if is_over or is_cut:
                break
    assert len(read) == 2


def test_no_sequence_of_moves_does_better_than_another_by_more_than_chance() -> None:
    """The best of many sequences on training tasks is no better on test tasks than the mean of them all."""
    env = VisualMazeEnv(size=4)
    rng = np.random.default_rng(1)
    sequences = [tuple(rng.choice(list(STEPS), 12)) for _ in range(24)]
    plans: dict[str, list[Plan]] = {"train": [], "test": []}
    for split, mazes in plans.items():
        for task in env.tasks(split)[:60]:
            env.reset(options={"task": task})
            mazes.append(env.plan)

    def is_out(plan: Plan, sequence: tuple[Direction, ...]) -> bool:
        at = plan.start
        for direction in sequence:
            at = moved(at, direction) if direction in plan.exits(at) else at
            if at == plan.goal:
                return True
        return False

    def wins(sequence: tuple[Direction, ...], split: str) -> float:
        return sum(is_out(plan, sequence) for plan in plans[split]) / 60

    train = [wins(sequence, "train") for sequence in sequences]
    test = [wins(sequence, "test") for sequence in sequences]
    best = int(np.argmax(train))
    assert max(train) < 0.4 and test[best] < np.mean(test) + 0.15
    assert np.mean(test) < 0.3


def test_a_blind_guess_of_a_square_is_one_in_as_many_as_there_are_cells() -> None:
    env = VisualGridEnv(size=2, actions="pick")
    asked: Counter[tuple[str, str]] = Counter()
    for task in env.tasks("train")[:1200]:
        observation, _ = env.reset(options={"task": task})
        asked[observation[0].text, env.oracle().content] += 1  # type: ignore[index]
    by_text = {text: [n for (said, _), n in asked.items() if said == text] for text, _ in asked}
    assert len(by_text) == 6
    for counts in by_text.values():  # about 200 tasks: each cell has a quarter of them, within four deviations
        assert len(counts) == 4 and all(
            abs(n / sum(counts) - 0.25) < 4 * (0.25 * 0.75 / sum(counts)) ** 0.5 for n in counts
        )


def test_the_picture_shows_what_a_move_changes() -> None:
    env = VisualMazeEnv()
    before = pixels_of(env.reset(seed=3)[0])
    bumped = pixels_of(env.step("move: north")[0])
    moved = pixels_of(env.step(env.oracle())[0])
    assert (before == bumped).all() and (before != moved).any()
    assert before.shape == (224, 224, 3)


@pytest.mark.parametrize(("scale", "factor"), [("pixels", 1.0), ("normalised", 1000 / 448)])
def test_a_click_on_what_is_seen_hits_it(scale: Any, factor: float) -> None:
    """The pixels of the named colour, found in the picture alone, are the answer."""
    from agentgym.envs.seeing.picture_game import COLOURS

    env = VisualGridEnv(size=7, picture=448, coordinates=scale)
    for task in env.tasks("test")[:20]:
        observation, _ = env.reset(options={"task": task})
        colour = observation[0].text.split()[2]
        rows, columns = np.nonzero((pixels_of(observation) == COLOURS[colour]).all(-1))
        for at in (0, -1):  # two opposite corners of the square
            env.reset(options={"task": task})
            assert (
                env.step(f"click: {int(columns[at] * factor) + (factor > 1)}, {int(rows[at] * factor) + (factor > 1)}")[
                    1
                ]
                == 1.0
            )


@pytest.mark.parametrize(
    ("scale", "call", "said"),
    [
        ("pixels", "click: 224, 0", "(224, 0) is outside the picture: x runs from 0 to 223, y from 0 to 223"),
        ("pixels", "click: 5, -1", "(5, -1) is outside the picture"),
        ("normalised", "click: 1001, 0", "x runs from 0 to 1000, y from 0 to 1000"),
        ("normalised", "click: 0.5, 0.25", "(0.5, 0.25) looks like shares of 1; x runs from 0 to 1000"),
        ("pixels", "click: 1e9; 3", "less than or equal to"),
        ("pixels", "click: NaN; 3", "Error"),
    ],
)
def test_points_outside_the_picture_are_refused(scale: Any, call: str, said: str) -> None:
    env = VisualGridEnv(coordinates=scale)
    env.reset(seed=0)
    observation, reward, is_over, _, info = env.step(call)
    assert said in observation[0].text and not info["is_valid"] and not is_over and reward == 0


@pytest.mark.parametrize("picture", [100, 0, -224, 4480 * 28])
def test_pictures_that_every_processor_resizes_are_refused(picture: int) -> None:
    with pytest.raises(ConfigError, match="both sides must be multiples of 28 or of 32"):
        VisualMazeEnv(picture=picture)


def test_a_cell_needs_some_pixels() -> None:
    with pytest.raises(UsageError, match="8 are needed"):
        VisualMazeEnv(size=16, picture=64)


def test_a_snapshot_restores_the_picture() -> None:
    env, other = VisualMazeEnv(), VisualMazeEnv()
    env.reset(seed=5)
    env.step(env.oracle())
    kept = env.snapshot()
    after = pixels_of(env.step(env.oracle())[0])
    other.restore(kept)
    assert other.state_key() == kept.state_key
    assert (pixels_of(other.step(other.oracle())[0]) == after).all()


def test_a_picture_needs_no_pillow() -> None:
    env = VisualMazeEnv(picture=448)
    (message,) = env.reset(seed=0)[0]
    part = message.content[1]
    assert isinstance(part, ImagePart) and png_size(base64.b64decode(part.png_base64)) == (448, 448)


@pytest.mark.parametrize("world", ["agentgym/VisualMaze-v0", "agentgym/VisualGrid-v0"])
@pytest.mark.parametrize("is_planned", [True, False])
def test_a_model_that_cannot_see_is_refused_before_it_plays(world: str, is_planned: bool, tmp_path: Path) -> None:
    command = ["train", "tiny", f"env.id={world}", *(["--dry-run"] if is_planned else ["--run-dir", str(tmp_path)])]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stderr.count("error:")) == (2, 1)
    assert "shows images that its texts do not replace" in done.stderr


def test_a_plan_that_trains_vision_needs_a_model_that_sees() -> None:
    done = CliRunner().invoke(app, ["train", "tiny", "model.vision=trained", "--dry-run"])
    assert done.exit_code == 2
    assert "model.vision=trained: a model that is built here reads text alone" in done.stderr
