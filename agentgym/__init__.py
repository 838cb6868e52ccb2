"""agentgym: a gym and a trainer for tool-using language agents.

Make an environment or register your own, then collect rollouts, evaluate and train agents in it. The framework keeps
the sampled token ids, separates infrastructure failures from rewards, and assigns credit to turns and tokens.
"""

import importlib
from typing import TYPE_CHECKING

from agentgym import envs as _builtin_envs  # registers the ids; imports no environment  # noqa: F401
from agentgym.errors import AgentGymError, EnvError, ToolError
from agentgym.registry import make, register
from agentgym.tool import tool
from agentgym.types import Message, RewardRole, Task, ToolCall

if TYPE_CHECKING:
    from agentgym.api.cross_play import cross_play
    from agentgym.api.evaluation import compare, evaluate
    from agentgym.api.rollouts import collect_rollouts
    from agentgym.api.sweep import resume_sweep, sweep
    from agentgym.api.training import resume, train
    from agentgym.env.env import Env
    from agentgym.env.game_env import GameEnv
    from agentgym.env.tool_env import ToolEnv
    from agentgym.report.plot import plot
    from agentgym.report.table import table

__version__ = "0.2.0"

__all__ = [
    "AgentGymError",
    "Env",
    "EnvError",
    "GameEnv",
    "Message",
    "RewardRole",
    "Task",
    "ToolCall",
    "ToolEnv",
    "ToolError",
    "collect_rollouts",
    "compare",
    "cross_play",
    "evaluate",
    "make",
    "plot",
    "register",
    "resume",
    "resume_sweep",
    "sweep",
    "table",
    "tool",
    "train",
]

_LAZY = {
    "Env": "env.env",
    "GameEnv": "env.game_env",
    "ToolEnv": "env.tool_env",
    "collect_rollouts": "api.rollouts",
    "compare": "api.evaluation",
    "cross_play": "api.cross_play",
    "evaluate": "api.evaluation",
    "plot": "report.plot",
    "resume": "api.training",
    "resume_sweep": "api.sweep",
    "sweep": "api.sweep",
    "table": "report.table",
    "train": "api.training",
}
"""Names whose modules are imported on first use, since these import Gymnasium and numpy, or more."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'agentgym' has no attribute {name!r}")
    return getattr(importlib.import_module(f"agentgym.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
