"""The smallest errand for an agent with a shell: show what a file says."""

from __future__ import annotations

from typing import Final

from agentgym import Task, register, tool
from agentgym.envs.code.grading import Grade
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.envs.code.workspace import Assignment, Files
from agentgym.tools.shell import BashTool

WORDS: Final = ("amber", "birch", "cobalt", "dune", "ember", "fjord", "garnet", "hazel", "iris", "jade", "kelp")
NAMES: Final = ("notes.txt", "plan.txt", "letter.txt", "list.txt")


class Errand(SandboxEnv, BashTool):
    """Show the text of a file. The reward is 1 for a command that prints it."""

    def assign(self, task: Task) -> Assignment:
        words = self.np_random.choice(len(WORDS), size=(len(NAMES), 3))
        texts = [" ".join(WORDS[place] for place in row) for row in words]
        place = int(self.np_random.integers(len(NAMES)))
        self.secret = texts[place]
        files = {name: f"{text}\n" for name, text in zip(NAMES, texts, strict=True)}
        return Assignment(text=f"Show what the file {NAMES[place]} says.", files=files)

    @tool
    def bash(self, command: str) -> str:
        """Run a shell command in the workspace.

        Args:
            command: the command line.
        """
        said = super().bash(command)
        if self.secret in said and not any(other in command for other in ("*", "-r")):
            self.finish(1.0)
        return said

    def grade(self, work: Files) -> Grade:
        return Grade(num_tests=1, num_passed=0)


register("Errand-v0", Errand, max_turns=4)
