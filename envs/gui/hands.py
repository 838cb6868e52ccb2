"""Finding and pointing at elements of a page, and why that fails: what the tools of an agent are made of."""

from __future__ import annotations

import difflib
from typing import Any

from agentgym.envs.gui.browser_session import BrowserSession
from agentgym.envs.gui.tab import Tab
from agentgym.envs.gui.tree import Tree
from agentgym.errors import ToolError

_MOST_SHOWN = 40


class Hands:
    """Works on the tab of a session, in the driver's loop."""

    clicks_through_covers: bool = False
    """Whether a click reaches an element that others cover wholly, as no person's would."""
    sees_all_elements: bool = False
    """Whether every element without children gets an id, for pages whose scripts listen where nothing shows it."""
    wait_ms: float = 0.0
    """Milliseconds of the page's time that this turn's waiting adds."""
    answer: str | None = None
    marks: list[str]

    @property
    def session(self) -> BrowserSession:
        """The episode's part of a browser."""
        raise NotImplementedError

    @property
    def page(self) -> Tree:
        """The page as it was last looked at."""
        raise NotImplementedError

    @property
    def tab(self) -> Tab:
        """The tab the agent looks at."""
        return self.session.tab

    async def _click(self, id: str, count: int, did: str) -> str:
        try:
            x, y = await self._point(id)
        except ToolError as error:
            if error.error_type != "covered" or not self.clicks_through_covers:
                raise
            for _ in range(count):
                await self._ask("press", id)
        else:
            await self.tab.patiently(self.tab.page.mouse.click(x, y, click_count=count))
        return f"{did} [{id}]."

    async def _drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        tab, mouse = self.tab, self.tab.page.mouse
        await tab.patiently(mouse.move(x, y))
        await tab.patiently(mouse.down())
        await tab.patiently(mouse.move(to_x, to_y, steps=4))  # what listens to dragging wants to see some way
        await tab.patiently(mouse.up())

    async def _point(self, id: str, scrolls: bool = True) -> tuple[float, float]:
        at = await self._ask("point" if scrolls else "pointHere", id)
        return at["x"], at["y"]

    async def _ask(self, name: str, id: str, *arguments: object) -> dict[str, Any]:
        """A function of ``hands.js`` that looks for an element first.

        Raises:
            ToolError: there is no such element, or it is of another kind.
        """
        known = self._meant(id)
        answer: dict[str, Any] = await self.tab.call(name, known, self.sees_all_elements, *arguments) or {}
        if "problem" in answer:
            raise _problem(id, answer)
        return answer

    def _meant(self, id: str) -> str:
        """An id as the page knows it: in brackets or not, or a mark's number."""
        id = id.strip().removeprefix("[").removesuffix("]")
        if id.isdecimal() and len(id) < 6 and 0 < int(id) <= len(self.marks):
            return self.marks[int(id) - 1]
        return id


def _problem(id: str, answer: dict[str, Any]) -> ToolError:
    """Why an element cannot be acted on, and what can be done instead."""
    match answer["problem"]:
        case "unknown":
            ids = answer["ids"]
            near = difflib.get_close_matches(id, ids, n=1, cutoff=0.5)
            hint = f" Did you mean [{near[0]}]?" if near else ""
            more = f" and {len(ids) - _MOST_SHOWN} more" if len(ids) > _MOST_SHOWN else ""
            return ToolError(
                f"no element [{id[:100]}].{hint} Ids: {', '.join(ids[:_MOST_SHOWN]) or 'none'}{more}", "unknown_id"
            )
        case "covered":
            return ToolError(f"[{id}] is covered by {answer['cover']!r}; deal with that first", "covered")
        case "no_option":
            many = "any of" if answer["isMultiple"] else "one of"
            return ToolError(f"[{id}] takes {many}: {' | '.join(answer['options'])}", "invalid_arguments")
        case "no_value":
            return ToolError(f"[{id}] does not take that: it is a field for a {answer['type']}", "invalid_arguments")
    said = {
        "disabled": "is disabled",
        "not_visible": "has no visible part to point at",
        "no_text": "is not a text box",
        "readonly": "is read-only",
        "no_select": "is no combobox or list with options; click it instead",
        "no_check": "is no checkbox, radio button or switch",
    }
    return ToolError(f"[{id}] {said[answer['problem']]}", "impossible_action")
