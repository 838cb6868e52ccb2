"""Shared parts of the MiniWoB++ tests. The functions on lines of JSON run in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.replay import PATIENT, Recording, differences, side_by_side
from testkit.gui_pages import NEEDS_CHROMIUM

NEEDS_MINIWOB = [
    *NEEDS_CHROMIUM,
    pytest.mark.skipif(find_spec("miniwob") is None, reason="needs the extra: pip install -e '.[miniwob]'"),
]


def make_env() -> MiniWoBEnv:
    """Return an environment for complete episodes, in which success means the full reward."""
    return MiniWoBEnv(max_turns=60, success_above=0.99, pool=PATIENT)


def first_look(env: MiniWoBEnv, task: str) -> list[str]:
    """Return the start of an episode: goal, tree, state key."""
    observation, _ = env.reset(options={"task": task})
    return [env.goal, observation[0].text, env.state_key()]


def first_looks(tasks: Sequence[str]) -> list[list[str]]:
    """Return the starts of several tasks' episodes, in order."""
    return side_by_side(make_env, first_look, tasks)


def replay(recordings: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the differences between recordings as JSON."""
    return side_by_side(make_env, lambda env, one: differences(env, Recording.from_json(one)), recordings)


def elsewhere(function: str, given: Sequence[Any]) -> list[Any]:
    """Return the result of a function of this file in another process."""
    program = f"import json, sys; sys.path[:0] = {sys.path!r}; import testkit.miniwob_episodes as here; "
    program += f"print(json.dumps(here.{function}(json.load(sys.stdin))))"
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    found: list[Any] = json.loads(done.stdout)
    return found
