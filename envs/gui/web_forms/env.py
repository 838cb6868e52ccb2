"""``agentgym/WebForms-v0``: forms, tables, a calendar, drag and drop, a long list, a frame and shadow DOM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from agentgym.env.tasks import SeededTasks
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.site import Folder, Request, Response, Sites
from agentgym.envs.gui.tree import Node, Tree
from agentgym.envs.gui.web_forms.problems import KINDS, Problem, make_problem
from agentgym.errors import ConfigError, UsageError, require_known
from agentgym.types import Message, Task, ToolCall

_FOLDER = Path(__file__).parent.parent / "sites" / "web_forms"


class Office:
    """The server behind the pages, with the episode's problem and the submissions."""

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
        """Return the next call of the gold policy; points on the picture if the agent points.

        Raises:
            UsageError: no points do that: in the list, which scrolls in itself, and where a native list is needed.
        """
        if self.points and self.office.problem.page == "list":
            raise UsageError(f"{self.env_id} has no oracle that points at lines of the long list; use actions=elements")
        return self.message_of(next_call(self.office.problem, self.page))


# -------------------------------------------------- the gold policy of WebForms, which depends only on the current page


def next_call(problem: Problem, page: Tree) -> ToolCall:
    """Return the next call."""
    if "answer" in problem.goal:
        return _call("done", answer=problem.goal["answer"])
    return _NEXT[problem.page](dict(problem.goal), page)


def _call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name, arguments, "0")


def _click(node: Node) -> ToolCall:
    return _call("click", id=node.id)


def _form(goal: dict[str, Any], page: Tree) -> ToolCall:
    for label, wanted in goal.items():
        if label in ("Newsletter", "Topics"):
            role = "radio" if label == "Newsletter" else "checkbox"
            for name in [wanted] if isinstance(wanted, str) else wanted:
                if not (node := page.find(role, name)).states["checked"]:
                    return _call("check", id=node.id)
        elif label == "Room":
            if (node := page.find("combobox", label)).states["value"] != wanted:
                return _call("select", id=node.id, options=[wanted])
        elif (node := page.find("textbox", label)).states.get("value") != wanted:
            return _call("fill", id=node.id, text=wanted)
    return _click(page.find("button", "Send"))


def _table(goal: dict[str, object], page: Tree) -> ToolCall:
    in_row = False
    for node in page.nodes:
        if node.role in ("cell", "row"):
            in_row = node.name == goal["removed"] if node.role == "row" or not in_row else in_row
        if in_row and node.role == "button":
            return _click(node)
    raise LookupError(f"no row of {goal['removed']}")


def _calendar(goal: dict[str, Any], page: Tree) -> ToolCall:
    wanted = datetime.fromisoformat(goal["date"])
    shown = next(_dates(page), None)
    if shown is None:
        raise LookupError(f"no month on {page.url}")
    if (shown.year, shown.month) != (wanted.year, wanted.month):
        back = (shown.year, shown.month) > (wanted.year, wanted.month)
        return _click(page.find("button", "Previous month" if back else "Next month"))
    day = page.find("button", str(wanted.day))
    return _click(page.find("button", "Book") if day.states["checked"] else day)


def _dates(page: Tree) -> Iterator[datetime]:
    for node in page.find_all("heading"):
        if node.states["level"] == 2:
            yield datetime.strptime(node.name, "%B %Y")


def _board(goal: dict[str, Any], page: Tree) -> ToolCall:
    column = ""
    for node in page.nodes:
        if node.role == "region":
            column = node.name
        elif node.role == "clickable" and node.name not in goal[column]:
            other = next(name for name in goal if name != column)
            return _call("drag", source=node.id, target=page.find("region", other).id)
    return _click(page.find("button", "Save"))


def _list(goal: dict[str, Any], page: Tree) -> ToolCall:
    for node in page.find_all("option", goal["ordered"]):
        return _click(node)
    return _call("scroll", direction="down", id=page.find("listbox", "Parts").id)


def _frame(goal: dict[str, Any], page: Tree) -> ToolCall:
    if goal["code"] not in page.text:
        return _click(page.find("button", "Show code"))
    box = page.find("textbox", "Code")
    if box.states.get("value") != goal["code"]:
        return _call("fill", id=box.id, text=goal["code"])
    return _click(page.find("button", "Open"))


def _settings(goal: dict[str, Any], page: Tree) -> ToolCall:
    for name, on in goal["switches"].items():
        node = page.find("switch", name)
        if node.states["checked"] != on:
            return _call("check" if on else "uncheck", id=node.id)
    theme = page.find("combobox", "Theme")
    if theme.states["value"] != goal["theme"]:
        return _call("select", id=theme.id, options=[goal["theme"]])
    return _click(page.find("button", "Save"))


_NEXT: dict[str, Callable[[dict[str, object], Tree], ToolCall]] = {
    "form": _form,
    "table": _table,
    "calendar": _calendar,
    "board": _board,
    "list": _list,
    "frame": _frame,
    "settings": _settings,
}
