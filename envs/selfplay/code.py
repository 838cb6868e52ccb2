"""``agentgym/CodeSelfPlay-v0``: write a program, and in the other role predict its output or find its input.

Source: "Absolute Zero: Reinforced Self-play Reasoning with Zero Data" (arXiv 2505.03335).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from agentgym.canonical import canonical
from agentgym.env.tasks import SeededTasks
from agentgym.envs.code.functions import LEVELS, Function, make_function
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool, Wanted, shared_pool
from agentgym.envs.selfplay.programs import (
    NAME,
    REASONS,
    Program,
    are_equal,
    check_program,
    read_arguments,
    read_literal,
    run,
)
from agentgym.envs.selfplay.roles import PROPOSER, SelfPlayEnv
from agentgym.errors import UsageError, require_known
from agentgym.sandbox import Limits
from agentgym.sandboxes.images import DEFAULT_IMAGE
from agentgym.tool import tool
from agentgym.types import Message, Observation, Task, ToolCall

Mode = Literal["deduction", "abduction"]
MODES: Final = ("deduction", "abduction")
LIMITS: Final = Limits(wall_s=45.0, cpu_s=3)
"""Limits of a run. The CPU time limit ends endless programs, on idle and on busy machines alike."""
_STEP_S: Final = 4 * LIMITS.wall_s + 60.0
_NEXT: Final = 500_000_000
"""Distance from a task's seed to the seed of the oracle's program."""


class CodeSelfPlayEnv(SelfPlayEnv):
    """Propose a Python function with an input, and in the other role reason about what it does.

    The proposer reads an example program, and proposes another one and an input. The program runs twice, each time in a
    new sandbox (:mod:`agentgym.envs.selfplay.programs`). By ``deduction`` the solver sees program and input, and gives
    the output. By ``abduction`` it sees program and output, and gives any input that leads to it.

    Args:
        mode: ``deduction`` or ``abduction``.
        level: level of the example and of the oracle's programs, 0 to 4 (:mod:`agentgym.envs.code.functions`).
        sandbox, require, image, max_sandboxes: see :class:`~agentgym.envs.code.sandbox_env.SandboxEnv`.
        max_turns: turns of both roles together.
        others: see :class:`~agentgym.envs.selfplay.roles.SelfPlayEnv`.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = CodeSelfPlayEnv(sandbox="process")
        >>> observation, info = env.reset(options={"task": 1})
        >>> while not (step := env.step(env.oracle()))[2]:
        ...     pass
        >>> step[4]["proposal"], env.parts_of(0)[0].value, env.parts_of(1)[0].value
        ('valid', 0.0, 1.0)
        >>> env.close()
    """

    is_blocking: ClassVar[bool] = True

    def __init__(
        self,
        *,
        mode: Mode = "deduction",
        level: int = 0,
        sandbox: Wanted = "auto",
        require: Sequence[str] = (),
        image: str = DEFAULT_IMAGE,
        max_sandboxes: int = 16,
        max_turns: int = 6,
        **others: Any,
    ) -> None:
        require_known("mode", mode, MODES)
        if level not in LEVELS:
            raise UsageError(f"level is one of {', '.join(map(str, LEVELS))}, got {level!r}")
        self.mode: Mode = mode
        self.level = level
        self.kind = SandboxKind(
            backend=sandbox, require=frozenset(require), image=image, limits=LIMITS, max_open=max_sandboxes
        )
        self.program: Program | None = None
        self.longest_step_s = _STEP_S
        super().__init__(max_turns=max_turns, **others)

    @property
    def pool(self) -> SharedPool:
        """Pool of the sandboxes that run programs."""
        return shared_pool(self.kind)

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        self.program = None
        if self.num_players == 1:
            function = self._own_function()
            given = function.examples[0]
            self.program = Program(code=function.source.strip(), arguments=(given,), output=function.run(given))
        hard = "tell its output" if self.mode == "deduction" else "find an input that gives the same output"
        return self.begin(
            f"Propose a short deterministic Python function {NAME} and an input for it. A solver who reads the "
            f"function should find it hard to {hard}. It must differ from this example:\n{self._example().source}"
        )

    @tool
    def propose(self, code: str, input: str) -> str:
        """Propose a program and an input, which ends your part.

        Args:
            code: Python code that defines the function f.
            input: Its arguments as Python literals, such as: [1, 2], 'a'
        """
        found = check_program(self.pool, code, input, self._example().source)
        if isinstance(found, str):
            self.reject(found)
            return f"The proposal is invalid: {REASONS[found]}."
        self.program = found
        self.accept()
        return "The program is valid and goes to the solver."

    @tool
    def answer(self, text: str) -> str:
        """Give the answer, which ends the episode.

        Args:
            text: The output, or the arguments, as Python literals.
        """
        self.settle(float(self._is_right(text)))
        return "The answer is noted."

    def task_for_solver(self) -> str:
        program = self._valid_program()
        if self.mode == "deduction":
            return f"What does {NAME}({program.shown_arguments}) return?\n{program.code}"
        return f"Give arguments for which {NAME} returns {program.output!r}.\n{program.code}"

    def _is_right(self, text: str) -> bool:
        program = self._valid_program()
        if self.mode == "deduction":
            value = read_literal(text)
            return (value is not None or text.strip() == "None") and are_equal(value, program.output)
        arguments = read_arguments(text)
        if arguments is None:
            return False
        returned = run(self.pool, program.code, arguments)
        return returned.is_value and are_equal_values(returned.value, program.output)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def tasks(self, split: str) -> Sequence[Task]:
        """Return examples to depart from: 1,000,000 for training, 1,000 each for the others; none is in two splits."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, {"level": self.level})

    def state_key(self) -> str:
        """Return the role that acts, the verdict, and the example or the program."""
        shown = self._example().source if self.player == PROPOSER else self.task_for_solver()
        return canonical([self.player, self.match.verdict, shown])

    def dump_state(self) -> object:
        return self.match, self.program

    def load_state(self, state: Any) -> None:
        self.match, self.program = state

    def oracle(self) -> Message:
        """Propose a generated program, or give the known output or input."""
        if self.player == PROPOSER:
            return self.message_of(ToolCall("propose", self._good_proposal(), "0"))
        program = self._valid_program()
        text = repr(program.output) if self.mode == "deduction" else program.shown_arguments
        return self.message_of(ToolCall("answer", {"text": text}, "0"))

    def admissible_actions(self) -> tuple[str, ...]:
        """A few proposals of generated programs, or a few small answers."""
        if self.player != PROPOSER:
            return tuple(self.message_of(ToolCall("answer", {"text": text})).text for text in ("0", "1", "'a'", "[1]"))
        good = self._good_proposal()
        changed = [good, {**good, "input": "0"}, {**good, "code": self._example().source}]
        return tuple(self.message_of(ToolCall("propose", proposal)).text for proposal in changed)

    def cheats(self) -> Mapping[str, Sequence[Message]]:
        """Programs that break a rule, and a proposer that answers its own question."""
        if self.num_players == 1:
            return {"say nothing": (self.message_of(ToolCall("answer", {"text": ""})),)}
        codes = {
            "draw at random": f"import random\ndef {NAME}(x):\n    return random.random()",
            "read a file": f"def {NAME}(x):\n    return open('/etc/passwd').read()",
            "never end": f"def {NAME}(x):\n    while True:\n        pass",
            "end the process": f"def {NAME}(x):\n    raise SystemExit(0)",
        }
        alone = {
            name: (self.message_of(ToolCall("propose", {"code": code, "input": "1"})),) for name, code in codes.items()
        }
        good = self._good_proposal()
        both = self.message_of(ToolCall("propose", good, "0"), ToolCall("answer", {"text": "1"}, "1"))
        return {**alone, "answer one's own question": (both,)}

    # --------------------------------------------------------------------------------------------------- private

    def _level(self) -> int:
        return int(self.task.data.get("level", self.level))

    def _example(self) -> Function:
        return make_function(self.task.seed, self.task.split, self._level())

    def _own_function(self) -> Function:
        """Return the program that the oracle proposes: one of another seed, and not the example."""
        example, seed = self._example().source, self.task.seed + _NEXT
        while (own := make_function(seed, self.task.split, self._level())).source == example:
            seed += 1
        return own

    def _good_proposal(self) -> dict[str, object]:
        own = self._own_function()
        return {"code": own.source, "input": repr(own.examples[0])}

    def _valid_program(self) -> Program:
        if self.program is None:
            raise UsageError(f"{self.env_id}: there is no valid proposal yet")
        return self.program


def are_equal_values(value: object, output: object) -> bool:
    """Return True if a returned value equals a literal; values that are no literals equal none."""
    try:
        return are_equal(value, output)
    except TypeError:
        return False
