"""A fuzzing agent for environments in a browser, which acts as an untrained policy might."""

from __future__ import annotations

import numpy as np

from agentgym.call_syntax import format_call
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.tool import random_call
from agentgym.types import Message, ToolCall

_KEYS = ("Enter", "Tab", "Escape", "ArrowDown", "ArrowUp", "PageDown", "Control+a", "Backspace", "a", "5")
_NO_ELEMENT = "no-such-element"


def fuzz_action(env: GuiEnv, rng: np.random.Generator) -> Message:
    """Return an action that the page suggests (half of the time), or any tool on any element, key or point."""
    allowed = env.admissible_actions()
    if allowed and rng.random() < 0.5:
        return env.parse_action(str(rng.choice(allowed)))
    spec = env.tools[int(rng.integers(len(env.tools)))]
    drawn = random_call(spec, rng, [*(node.id for node in env.page.nodes if node.id), _NO_ELEMENT])
    arguments: dict[str, object] = dict(drawn.arguments)
    for names, size in ((("x", "to_x"), env.kind.viewport[0]), (("y", "to_y"), env.kind.viewport[1])):
        arguments |= {name: int(rng.integers(size)) for name in names if name in arguments}
    if "key" in arguments:
        arguments["key"] = str(rng.choice(_KEYS))
    call = ToolCall(spec.name, arguments)
    return Message("assistant", format_call(call, env.tools), (call,))
