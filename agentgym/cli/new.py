"""``agentgym new``: a first environment of one's own, with its test."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, output
from agentgym.errors import UsageError

_ENV = Template('''"""$id: say here what an agent has to do."""

from agentgym import Message, Task, ToolEnv, register, tool


class $class_name(ToolEnv):
    """Find a hidden number by asking."""

    def start(self, task: Task) -> str:
        self.secret = int(self.np_random.integers(1, 11))  # np_random is the only source of randomness
        self.low, self.high = 1, 10
        return "I think of a number between 1 and 10. Find it."

    @tool
    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: a whole number from 1 to 10.
        """
        if number == self.secret:
            self.finish(1.0)
            return "Correct."
        if number < self.secret:
            self.low = max(self.low, number + 1)
            return "Higher."
        self.high = min(self.high, number - 1)
        return "Lower."

    def state_key(self) -> str:
        return f"{self.secret} in {self.low}..{self.high}"  # what is true now: no history, no counters

    def oracle(self) -> Message:
        return self.parse_action(f"guess: {(self.low + self.high) // 2}")


register("$id", $class_name, max_turns=5)
''')

_TEST = Template('''"""Is $id sound?"""

from pathlib import Path

from agentgym.check import check_env


def test_$module_name() -> None:
    report = check_env(str(Path(__file__).with_name("$module_name.py")))
    assert report.passed, str(report)
''')


def new(
    name: Annotated[str, typer.Argument(help="The environment's name, as in MyWorld or my_world.")],
    folder: Annotated[Path, typer.Option("--dir", help="Where the two files go.")] = Path("."),
    as_json: JsonFlag = False,
) -> None:
    """Write a small environment and its test, ready to run and to change."""
    with output(as_json) as out:
        module_name, class_name = _names(name)
        values = {"module_name": module_name, "class_name": class_name, "id": f"{class_name}-v0"}
        env_file, test_file = folder / f"{module_name}.py", folder / f"test_{module_name}.py"
        for path in (env_file, test_file):
            if path.exists():
                raise UsageError(f"{path} is there already; choose another name, or another folder with --dir")
        folder.mkdir(parents=True, exist_ok=True)
        env_file.write_text(_ENV.substitute(values), encoding="utf-8")
        test_file.write_text(_TEST.substitute(values), encoding="utf-8")
        commands = [
            f"agentgym play {env_file}",
            f"agentgym check {env_file}",
            f"pytest {test_file}",
            f"agentgym eval {env_file} --policy oracle",
            f"agentgym train tiny env.id={env_file}",
        ]
        out.result({"id": values["id"], "files": [str(env_file), str(test_file)], "next": commands})
        steps = "\n".join(f"  {command}" for command in commands)
        text = f"wrote {env_file} and {test_file}\n\nnext:\n{steps}"
        out.console.print(text, soft_wrap=True, markup=False)


def _names(name: str) -> tuple[str, str]:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|\d+", name)
    module_name = "_".join(words).lower()
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) is not None
    if not is_plain or not words or keyword.iskeyword(module_name):
        raise UsageError(f"{name!r} cannot name an environment; use letters, digits and _, as in MyWorld or my_world")
    return module_name, "".join(word[0].upper() + word[1:] for word in words)
