"""Use the tools of an MCP server in an environment: look up a price there, then pay.

    python examples/tools_over_mcp.py

The server is this file itself, started with ``--serve``; you can put any other MCP server's command in its place.
This example needs the extra ``mcp``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import agentgym
from agentgym import Message, Task, ToolCall, register, tool
from agentgym.tools.mcp import McpServer, McpToolEnv

PRICES = {"apple": 3, "bread": 5, "cheese": 8, "dates": 4}


class Till(McpToolEnv):
    """Pay what one thing costs; the server alone knows the prices."""

    servers = (McpServer(command=(sys.executable, str(Path(__file__).resolve()), "--serve"), only=("price",)),)

    def start(self, task: Task) -> str:
        self.wanted = str(self.np_random.choice(sorted(PRICES)))
        return f"Buy one {self.wanted}. Ask for its price, then pay exactly that."

    @tool
    def pay(self, amount: int) -> str:
        """Pay.

        Args:
            amount: in coins.
        """
        self.finish(1.0 if amount == PRICES[self.wanted] else 0.0)
        return "Thank you."

    def oracle(self) -> Message:
        """Return an expert's action. Like the policy, the expert reads the price in the server's reply."""
        call = ToolCall("pay", {"amount": PRICES[self.wanted]}) if self.turn else ToolCall("price", {"of": self.wanted})
        return Message("assistant", "", (call,))


def serve() -> None:
    """Serve the tool ``price`` over standard input and output with the official ``mcp`` package."""
    from mcp.server import MCPServer

    server = MCPServer("prices", log_level="ERROR")

    @server.tool()
    def price(of: str) -> str:
        """Tell what one thing costs, in coins."""
        return f"{PRICES[of]} coins" if of in PRICES else f"no {of} here"

    server.run()


def show(env: agentgym.ToolEnv) -> None:
    """Print the tools that a policy sees, and one conversation."""
    print("tools:", ", ".join(spec.name for spec in env.tools))
    observation, _ = env.reset(seed=0)
    print(observation[-1].text)
    is_over = False
    while not is_over:
        action = env.oracle()
        observation, _, terminated, truncated, _ = env.step(action)
        call = action.calls[0]
        assert isinstance(call, ToolCall)
        print(f"> {call.name} {dict(call.arguments)}: {observation[-1].text}")
        is_over = terminated or truncated


def run(num_steps: int) -> None:
    """Show the environment, evaluate in it, and train a small model there."""
    register("Till-v0", Till, max_turns=3)
    env = agentgym.make("Till-v0")
    show(env)
    env.close()
    print("oracle:", agentgym.evaluate("Till-v0", "oracle", episodes=8, num_envs=2))
    settings = {
        "env.id": "Till-v0",
        "num_steps": num_steps,
        "groups_per_step": 4,
        "group.group_size": 4,
        "group.num_envs": 4,
    }
    warm_start = {"sft.num_demos": 160, "sft.num_epochs": 8, "sft.batch_size": 4, "eval.num_episodes": 32}
    result = agentgym.train("tiny", {**settings, **warm_start})
    print(f"success: {result.success_before:.0%} before RL, {result.success_after:.0%} after; {result.run_dir}")


def main() -> None:
    """Run the example, or the server that it asks."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=12)
    arguments.add_argument("--serve", action="store_true", help="be the MCP server")
    given = arguments.parse_args()
    serve() if given.serve else run(given.steps)


if __name__ == "__main__":
    main()
