"""What the tests of MiniWoB++ share; run as a program it replays recordings, in a process of its own."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from gui_pages import NEEDS_CHROMIUM

from agentgym.env import Env
from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.replay import Recording, differences
from agentgym.types import Message

NEEDS_MINIWOB = [
    *NEEDS_CHROMIUM,
    pytest.mark.skipif(find_spec("miniwob") is None, reason="needs the extra: pip install 'agentgym[miniwob]'"),
]
KEYS = ("Enter", "Tab", "Escape", "ArrowDown", "a", "Backspace")


def fuzz(env: Env, rng: np.random.Generator) -> Message:
    """An action of a fuzzing agent: mostly what the page allows, sometimes a key, a point, or nonsense."""
    choice = rng.random()
    allowed = env.admissible_actions()
    if allowed and choice < 0.6:
        text = allowed[int(rng.integers(len(allowed)))]
    elif choice < 0.7:
        text = f"press: {KEYS[int(rng.integers(len(KEYS)))]}"
    elif choice < 0.85:
        text = f"click_at: {rng.integers(160)}; {rng.integers(50, 210)}"
    elif choice < 0.95:
        spot = rng.integers((160, 160), size=2)
        text = f"drag_at: {rng.integers(160)}; {rng.integers(50, 210)}; {spot[0]}; {50 + spot[1]}"
    else:
        text = "click: no-such-element"
    return env.parse_action(text)


def replay_all() -> None:
    """Recordings as JSON lines from standard input; a line of differences for each, as JSON, to standard output."""
    env = MiniWoBEnv()
    for line in sys.stdin:
        print(json.dumps(differences(env, Recording.from_json(json.loads(line)))))
    env.close()
    close_browsers()


if __name__ == "__main__":
    replay_all()
