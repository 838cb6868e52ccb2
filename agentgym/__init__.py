"""agentgym: the gym and the trainer for tool-using language agents.

``make`` an environment, ``register`` your own, and leave tokens, failures and credit to the framework.
"""

from agentgym import envs as _builtin_envs  # registers the ids; imports no environment  # noqa: F401
from agentgym.env.env import Env
from agentgym.env.game_env import GameEnv
from agentgym.env.tool_env import ToolEnv
from agentgym.errors import AgentGymError, ToolError
from agentgym.registry import make, register
from agentgym.tool import tool
from agentgym.types import Message, RewardRole, Task, ToolCall

__version__ = "0.1.0"

__all__ = [
    "AgentGymError",
    "Env",
    "GameEnv",
    "Message",
    "RewardRole",
    "Task",
    "ToolCall",
    "ToolEnv",
    "ToolError",
    "make",
    "register",
    "tool",
]
