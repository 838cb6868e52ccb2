"""``agentgym/PictureQuestions-v0``: questions about the pictures of a file, with tools to look at them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical, digest
from agentgym.env.tasks import SPLITS
from agentgym.envs.splits import is_byte_in_split
from agentgym.errors import CorruptDataError, require_known
from agentgym.scoring.text import Metric, check_metric, score
from agentgym.tool import tool
from agentgym.tools.look import LookTools
from agentgym.tools.picture_files import read_picture_rows
from agentgym.tools.pictures import Scale, check_size
from agentgym.types import ImagePart, Message, Observation, Task, TextPart, ToolCall


class PictureQuestionsEnv(LookTools):
    """Answer a question about pictures, which can be cropped and enlarged first.

    Args:
        questions: a ``.jsonl`` or ``.parquet`` file of rows with ``question``, ``answer`` (a text or several) and
            ``image`` or ``images`` (:mod:`agentgym.tools.picture_files`).
        picture: width and height of all pictures; None pads each one to multiples of 224.
        coordinates: scale of the tools' coordinates: ``pixels``, or ``normalised``, 0 to 1000.
        outcome: metric that grades an answer: ``em``, ``f1`` or ``cover_em`` (:mod:`agentgym.scoring.text`).
        max_turns: turns after which an episode is truncated.
    """

    needs_images = True

    def __init__(
        self,
        *,
        questions: str,
        picture: Sequence[int] | None = None,
        coordinates: Scale = "pixels",
        outcome: Metric = "em",
        max_turns: int = 8,
        render_mode: str | None = None,
    ) -> None:
        check_metric(outcome)
        require_known("scale of coordinates", coordinates, ("pixels", "normalised"))
        self.look_scale, self._outcome = coordinates, outcome
        self._tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        self._pictures: dict[str, tuple[ImagePart, ...]] = {}
        self._is_answered = False
        size = None if picture is None else check_size(picture, "picture")
        for number, (row, pictures) in enumerate(read_picture_rows(Path(questions), size), 1):
            self._add(row, pictures, f"{questions}, row {number}")
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    def _add(self, row: Mapping[str, Any], pictures: tuple[ImagePart, ...], where: str) -> None:
        """Add a row as a task of the split that its content has, so that equal rows are in one split."""
        question, answer = row.get("question"), row.get("answer")
        answers = [answer] if isinstance(answer, str | int | float) else answer
        if not isinstance(question, str) or not isinstance(answers, list | tuple) or not answers:
            raise CorruptDataError(f"{where}: expected a text in question, and a text or a list of texts in answer")
        parts = [part.png_base64 for part in pictures]
        name = digest([question, parts])
        split = next(split for split in SPLITS if is_byte_in_split(int(name[:2], 16), split))
        if name in self._pictures:
            return
        data = {"question": question, "answers": [str(one) for one in answers], "pictures": name}
        self._pictures[name] = pictures
        self._tasks[split].append(Task(id=f"question-{name[:12]}", split=split, seed=int(name[:12], 16), data=data))

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the questions of a split: 60, 20 and 20 per cent of them, by their content."""
        require_known("split", split, SPLITS)
        return self._tasks[split]

    def start(self, task: Task) -> Observation:
        self._is_answered = False
        pictures = self._pictures[str(task.data["pictures"])]
        scale = "pixels of the picture" if self.look_scale == "pixels" else "0 to 1000 along each side"
        told = f"{task.data['question']}\nAnswer in as few words as possible. Coordinates: {scale}."
        return (Message("user", (TextPart(told), *pictures)),)

    @tool
    def answer(self, text: str) -> str:
        """Give the answer, which ends the episode.

        Args:
            text: The answer alone, in as few words as possible.
        """
        self._is_answered = True
        self.finish(score(text, self.task.answers, self._outcome))
        return "The answer is noted."

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        return canonical([self.task.data["pictures"], self._is_answered])

    def dump_state(self) -> tuple[object, ...]:
        return self._is_answered, self.shown

    def load_state(self, state: tuple[Any, ...]) -> None:
        self._is_answered, self.shown = state

    def oracle(self) -> Message:
        """Return the answer."""
        call = ToolCall("answer", {"text": self.task.answers[0]}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))
