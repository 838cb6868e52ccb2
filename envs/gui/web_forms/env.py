"""``agentgym/WebForms-v0``: forms, tables, a calendar, drag and drop, a long list, a frame and shadow DOM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym.call_syntax import format_call
from agentgym.env.tasks import SeededTasks
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.site import Folder, Request, Response, Sites
from agentgym.envs.gui.web_forms.oracle import next_call
from agentgym.envs.gui.web_forms.problems import KINDS, Problem, make_problem
from agentgym.errors import ConfigError, UsageError, require_known
from agentgym.types import Message, Task, ToolCall

_FOLDER = Path(__file__).parent.parent / "sites" / "web_forms"


class Office:
    """The server behind the pages, with the episode's problem and what was submitted."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.submitted: object = None
        self._files = Folder(_FOLDER)

    async def answer(self, request: Request) -> Response:
        """Files, the task's data, and submissions."""
        if request.path == "/task.json":
            body = json.dumps({"page": self.problem.page, "data": self.problem.data}).encode()
            return Response(body=body, content_type="application/json")
        if request.path == "/submit" and request.method == "POST":
            if self.submitted is None:  # the first one counts
                self.submitted = json.loads(request.body)
            return Response(body=b"Thank you.", content_type="text/plain; charset=utf-8")
        return await self._files.answer(request)


class WebFormsEnv(GuiEnv):
    """Do one thing on one page: fill in a form, pick a date, drag a card, find a line of a long list ...

    Args:
        kinds: kinds of problems, all of :data:`~agentgym.envs.gui.web_forms.problems.KINDS` by default.
        max_turns: turns after which an episode is truncated.
        options: those of :class:`~agentgym.envs.gui.gui_env.GuiEnv`.
    """

    def __init__(self, *, kinds: Sequence[str] = tuple(KINDS), max_turns: int = 20, **options: Any) -> None:
        if not kinds:
            raise ConfigError(f"kinds must name at least one of {', '.join(KINDS)}")
        for kind in kinds:
            require_known("kind of problem", kind, KINDS)
        self._kinds = tuple(kinds)
        self._office: Office | None = None
        super().__init__(max_turns=max_turns, **options)

    @property
    def office(self) -> Office:
        """The server of the current episode."""
        if self._office is None:
            raise UsageError(f"{self.env_id}: no episode was begun")
        return self._office

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 to train on, 1,000 to validate, 1,000 to test; the kinds in turn."""
        size = 1_000_000 if split == "train" else 1_000
        return SeededTasks(split, size, lambda seed: {"kind": self._kinds[seed % len(self._kinds)]})

    def sites(self, task: Task) -> Sites:
        kind = str(task.data.get("kind"))
        require_known("kind of problem", kind, KINDS)
        self._office = Office(make_problem(kind, self.np_random))
        return {"office.localhost": self._office}

    async def set_up(self, task: Task) -> str:
        return self.office.problem.instruction

    async def score(self) -> float | None:
        goal = self.office.problem.goal
        if self.answer is not None:
            return float("answer" in goal and self.answer.strip() == goal["answer"])
        return None if self.office.submitted is None else float(self.office.submitted == goal)

    def hidden_state(self) -> object:
        return json.dumps(self.office.submitted, sort_keys=True)

    def oracle(self) -> Message:
        call: ToolCall = next_call(self.office.problem, self.page)
        return Message("assistant", format_call(call, self.tools), (call,))
