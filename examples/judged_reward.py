"""Train on a task that no program can grade: a judge compares the episodes of a group.

The judge is any OpenAI-compatible endpoint; its key is read from OPENAI_API_KEY. A local one:

    agentgym serve-model Qwen/Qwen2.5-7B-Instruct --port 8001
    python examples/judged_reward.py 'openai:http://127.0.0.1:8001/v1'

If the judge fails, the episodes that it should have graded are left out of training; they do not get a reward of 0.
"""

from __future__ import annotations

import argparse

import agentgym
from agentgym import Message, Task, ToolEnv, register, tool

FLOWERS = ("rose", "tulip", "lily")
RUBRIC = "How well does the line describe the flower that was asked for? A line that names another one gets 0."


class Flowers(ToolEnv):
    """Describe a flower in a line. The environment checks nothing; the judge grades."""

    max_turns = 2

    def start(self, task: Task) -> str:
        """Choose the flower by the task's seed."""
        self._flower = FLOWERS[task.seed % len(FLOWERS)]
        return f"Describe a {self._flower} in one line."

    @tool
    def write(self, line: str) -> str:
        """Hand in the line."""
        self.finish(0.0)  # the environment gives no reward: the judge's score is the whole reward
        return "Thank you."

    def oracle(self) -> Message:
        """Return a line that the warm start shows the model."""
        return Message("assistant", "", (agentgym.ToolCall("write", {"line": f"a red {self._flower} in the rain"}),))


register("Flowers-v0", Flowers)


def main() -> None:
    """Train with the judge's scores as reward."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("judge", help="openai:URL?model=NAME")
    arguments.add_argument("--steps", type=int, default=3)
    given = arguments.parse_args()
    result = agentgym.train(
        "tiny",
        {
            "env.id": f"{__file__}:Flowers-v0",
            "judge.model": given.judge,
            "judge.grades": "groups",  # compare the episodes of a group in one request, as ART's RULER does
            "judge.rubric": RUBRIC,
            "credit.estimator": "grpo",
            "groups_per_step": 2,
            "group.group_size": 4,
            "sft.num_demos": 120,
            "eval.num_episodes": 4,
            "num_steps": given.steps,
        },
    )
    print(f"{result.num_trajectories} episodes; the verdicts: {result.run_dir}/judge.jsonl")


if __name__ == "__main__":
    main()
