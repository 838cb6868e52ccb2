"""Unary feedback: the reply to a wrong answer is only "try again".

Source: "A Simple 'Try Again' Can Elicit Multi-Turn LLM Reasoning" (UFO, 2025), which turns single-turn data into
episodes of several attempts. Reward and defaults are those of the released code (``ragen/env/metamathqa/env.py``),
as in the shaper ``ufo`` (:mod:`agentgym.credit.shapers.attempts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from agentgym.canonical import canonical, read_json
from agentgym.env.env import Env
from agentgym.env.tasks import SPLITS, SeededTasks
from agentgym.envs.rows import lines_of
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import CorruptDataError, MissingDataError, UsageError
from agentgym.scoring.numbers import without_groups
from agentgym.types import Message, RewardRole, Task

TRY_AGAIN = "Try again."
_MARKED = re.compile(r"(?:answer\s*:|</?answer>|\\boxed\{)\s*(.+?)\s*(?:</answer>|\}|$)", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:/\d+)?")

Question = tuple[str, tuple[str, ...]]
"""A question and its correct answers."""
MakeQuestion = Callable[[np.random.Generator], Question]


def answer_in(text: str) -> str:
    """Return the answer of a text: the last one marked as such (``Answer: 7``, ``\\boxed{7}``), else its last line.

    Example:
        >>> answer_in("3 + 4 is\\nAnswer: 7"), answer_in("It is 7"), answer_in(" ")
        ('7', 'It is 7', '')
    """
    marked = [found.strip() for found in _MARKED.findall(text) if found.strip()]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return marked[-1] if marked else (lines[-1] if lines else "")


def normalised(answer: str) -> str:
    """Normalise an answer: numbers by value, texts without case, articles and punctuation.

    Example:
        >>> normalised("The Eiffel Tower."), normalised("7.0"), normalised("14/2")
        ('eiffel tower', '7', '7')
    """
    number = without_groups(answer.strip().rstrip(".")).replace(",", "")
    if _NUMBER.fullmatch(number):
        with suppress(ZeroDivisionError):
            return str(Fraction(number))
    words = re.findall(r"\w+", answer.casefold())
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def arithmetic(rng: np.random.Generator) -> Question:
    """Make a question about sums, differences and products of small numbers.

    Example:
        >>> arithmetic(np.random.default_rng(0))
        ('What is 18 * 14 + 11?', ('263',))
    """
    a, b, c = (int(rng.integers(2, 21)) for _ in range(3))
    sign = "+" if rng.random() < 0.5 else "-"
    return f"What is {a} * {b} {sign} {c}?", (str(a * b + (c if sign == "+" else -c)),)


def read_questions(path: Path) -> tuple[Question, ...]:
    """Read questions from a file of JSON lines with ``question`` and ``answers`` (or ``answer``).

    Raises:
        UsageError: there is no such file.
        CorruptDataError: a line is not a question.
    """
    if not path.is_file():
        raise MissingDataError(f"no file {str(path)!r}; it has a line like {{'question': ..., 'answers': [...]}} each")
    questions: list[Question] = []
    for number, line in lines_of(path):
        try:
            row = read_json(line)
            given = row["answers"] if "answers" in row else row["answer"]
            answers = [given] if isinstance(given, str | int | float) else given
            questions.append((str(row["question"]), tuple(map(str, answers))))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(f"{path}, line {number}: not a question with answers ({error!r})") from error
    return tuple(questions)


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts of an episode: normalised answers so far, None for an attempt without an answer."""

    answers: tuple[str | None, ...] = ()

    @property
    def num_different(self) -> int:
        """Number of distinct answers."""
        return len({answer for answer in self.answers if answer is not None})


class TryAgainEnv(Env):
    """Answer a question. The reply to a wrong answer is "Try again." and nothing else.

    The reward comes with the last attempt, in three parts: ``success``, ``decay ** (n - 1)`` if the n-th answer is
    correct; ``repetition``, minus ``repetition_penalty`` times the share of answers that repeated another; and
    ``malformed``, ``malformed_reward`` for every attempt without an answer, which the other two parts do not count. It
    equals the reward of the shaper ``ufo``, so use only one of the two.

    Args:
        data: file of questions as JSON lines with ``question`` and ``answers``; without it, the seed draws sums.
        max_attempts: most attempts, 1 to 20; with 1 the task has a single turn.
        decay, repetition_penalty, malformed_reward: see above.
        says: reply to a wrong answer.
        revise: ask for all attempts, right or wrong, and pay 1 in every turn with a right answer, as SCoRe needs it. It
            is the outcome for the last attempt, and a process reward before. ``decay`` and ``repetition_penalty`` do
            not act. ``says`` follows right answers too, so give it a text that tells neither.

    Raises:
        UsageError: a value is out of range, or there is no such file.

    Example:
        >>> env = TryAgainEnv()
        >>> env.reset(seed=0)[0][0].text
        'What is 18 * 14 + 11? Give the answer on the last line.'
        >>> env.step("262")[0][0].text, env.step("Answer: 263")[1]
        ('Try again.', 0.5)
    """

    make_question: ClassVar[MakeQuestion] = staticmethod(arithmetic)
    """Function that makes a question with a random generator if there is no ``data``; subclasses may replace it."""
    question = SinceReset[Question]()
    """Question of the current episode with its answers."""
    _attempts = Attempts()

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        max_attempts: int = 5,
        decay: float = 0.5,
        repetition_penalty: float = 0.5,
        malformed_reward: float = -0.1,
        says: str = TRY_AGAIN,
        revise: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if not 1 <= max_attempts <= 20 or not 0 < decay <= 1 or repetition_penalty < 0 or malformed_reward > 0:
            raise UsageError(
                "max_attempts must be between 1 and 20, decay above 0 and at most 1, repetition_penalty at least 0, "
                "malformed_reward at most 0"
            )
        self._questions = None if data is None else read_questions(Path(data))
        self._max_attempts, self._decay, self._says, self._revise = max_attempts, decay, says, revise
        self._repetition_penalty, self._malformed_reward = repetition_penalty, malformed_reward
        super().__init__(render_mode=render_mode)
        # what the last attempt pays, and no less
        self.success_outcome = 1.0 if revise else decay ** (max_attempts - 1)  # type: ignore[misc]

    def start(self, task: Task) -> str:
        given = task.data.get("question")
        self.question = (
            (given, tuple(task.data["answers"])) if given is not None else type(self).make_question(self.np_random)
        )
        self._attempts = Attempts()
        return f"{self.question[0]} Give the answer on the last line."

    def respond(self, action: Message) -> str:
        said = normalised(answer_in(action.text)) or None
        self._attempts = Attempts((*self._attempts.answers, said))
        if said is None:
            self.refuse()
        is_right = said is not None and said in {normalised(answer) for answer in self.question[1]}
        if self._revise:
            return self._revised(said, is_right=is_right)
        if not is_right and len(self._attempts.answers) < self._max_attempts:
            return self._says
        self._settle(is_right)
        return "Correct." if is_right else "No attempts are left."

    def _revised(self, said: str | None, *, is_right: bool) -> str:
        """Pay an attempt by itself, and ask for the next one, if there is one."""
        if said is None and self._malformed_reward:
            self.award(self._malformed_reward, "malformed", RewardRole.FORMAT)
        if len(self._attempts.answers) < self._max_attempts:
            if is_right:
                self.award(1.0, "attempt", RewardRole.PROCESS)
            return self._says
        self.finish(float(is_right))
        return "No attempts are left."

    def _settle(self, is_right: bool) -> None:
        num_missing = self._attempts.answers.count(None)
        num_answers = len(self._attempts.answers) - num_missing
        if is_right:
            self.award(self._decay ** (num_answers - 1), "success")
        repeated = 1 - self._attempts.num_different / num_answers if num_answers else 0.0
        if repeated and self._repetition_penalty:
            self.award(-self._repetition_penalty * repeated, "repetition", RewardRole.COST)
        if num_missing and self._malformed_reward:
            self.award(self._malformed_reward * num_missing, "malformed", RewardRole.FORMAT)
        self.finish()

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def tasks(self, split: str) -> Sequence[Task]:
        """Return tasks by seed, or the questions of the data: 80 per cent for training, 10 each for validation and
        testing.
        """
        if self._questions is None or split not in SPLITS:
            return SeededTasks(split, 1_000_000 if split == "train" else 1_000)
        tenth = len(self._questions) // 10
        last = len(self._questions)
        first, end = {"train": (0, last - 2 * tenth), "valid": (last - 2 * tenth, last - tenth)}.get(
            split, (last - tenth, last)
        )
        return [
            Task(id=f"question-{at}", split=split, seed=at, data={"question": question, "answers": list(answers)})
            for at, (question, answers) in enumerate(self._questions[first:end], first)
        ]

    def state_key(self) -> str:
        """Return a key of the question and the tried answers, independent of their order."""
        tried = sorted({answer for answer in self._attempts.answers if answer is not None})
        return canonical([self.question[0], tried, *([len(self._attempts.answers)] if self._revise else [])])

    def dump_state(self) -> object:
        return self.question, self._attempts

    def load_state(self, state: Any) -> None:
        self.question, self._attempts = state

    def oracle(self) -> Message:
        return Message("assistant", self.question[1][0])

    def admissible_actions(self) -> tuple[str, ...]:
        """Return numbers near the answer if it is a number, else nothing."""
        answer = self.question[1][0]
        if not answer.lstrip("-").isdecimal():
            return ()
        return tuple(str(int(answer) + change) for change in range(-4, 5))
