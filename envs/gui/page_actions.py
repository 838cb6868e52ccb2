"""Tools for what is around a page: scrolling, history, addresses, time and tabs."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import Field

from agentgym.envs.gui.hands import Hands
from agentgym.errors import ToolError
from agentgym.tool import tool

Direction = Literal["up", "down", "left", "right"]
Address = Annotated[str, Field(max_length=2000)]


class PageActions(Hands):
    """The tools of the sets ``pages`` and ``tabs``."""

    @tool
    async def scroll(self, direction: Direction, id: Annotated[str, Field(max_length=200)] = "") -> str:
        """Scroll the page by most of a screen, or an element that scrolls.

        Args:
            direction: where to.
            id: id of an element; without it the page is scrolled.
        """
        width, height = self.session.kind.viewport
        dx = {"left": -0.8, "right": 0.8}.get(direction, 0.0) * width
        dy = {"up": -0.8, "down": 0.8}.get(direction, 0.0) * height
        moved = (await self._ask("scroll", id, dx, dy))["moved"]
        return f"Scrolled {direction}." if moved else f"It cannot be scrolled {direction} any further."

    @tool
    async def go_back(self) -> str:
        """Go back to the page before this one."""
        if not await self.tab.go_back():
            raise ToolError("there is no page before this one", "impossible_action")
        return "Went back."

    @tool
    async def goto(self, url: Address) -> str:
        """Open a page of this task's sites.

        Args:
            url: address, or a path on the present site, such as /help.
        """
        await self._goto(self._allowed(url))
        return f"Opened {url}."

    @tool
    async def wait(self, seconds: Annotated[float, Field(gt=0, le=60)] = 1.0) -> str:
        """Let time pass on the page.

        Args:
            seconds: how much.
        """
        self.wait_ms += 1000 * seconds
        return f"{seconds:g} s passed."

    @tool
    async def new_tab(self, url: Address = "") -> str:
        """Open a tab.

        Args:
            url: a page of this task's sites to open in it.
        """
        limit = self.session.browser.limits.num_tabs
        if len(self.session.tabs) >= limit:
            raise ToolError(f"no more than {limit} tabs may be open; close one", "impossible_action")
        target = self._allowed(url) if url else ""
        await self.session.new_tab()
        if target:
            await self._goto(target)
        return "Opened a tab."

    @tool
    async def switch_tab(self, number: Annotated[int, Field(ge=1)]) -> str:
        """Look at another tab.

        Args:
            number: of the tab, from 1.
        """
        self.session.current = self._tab_number(number)
        await self.tab.page.bring_to_front()
        return f"Tab {number}."

    @tool
    async def close_tab(self, number: Annotated[int, Field(ge=1)]) -> str:
        """Close a tab.

        Args:
            number: of the tab, from 1.
        """
        if len(self.session.tabs) == 1:
            raise ToolError("the only tab cannot be closed", "impossible_action")
        await self.session.close_tab(self._tab_number(number))
        return f"Closed tab {number}."

    # ---------------------------------------------------------------------------------------------------- private

    def _allowed(self, url: str) -> str:
        """A URL of this task's sites, completed from a path."""
        network, given = self.session.network, url.strip()
        if not network.hosts:
            raise ToolError(f"{url[:200]!r} is not part of this task, which has no sites", "not_allowed")
        if network.knows(given.partition("/")[0].lower()):  # as people write it
            given = f"http://{given}"
        here = self.tab.page.url
        is_home = network.knows(urlsplit(here).netloc.removesuffix(":80"))
        try:
            target = urljoin(here if is_home else f"http://{network.hosts[0]}/", given)
            parts = urlsplit(target)
            is_known = parts.scheme == "http" and network.knows(parts.netloc.lower().removesuffix(":80"))
        except ValueError:
            is_known = False
        if not is_known:
            pages = ", ".join(f"http://{name}/" for name in network.hosts)
            raise ToolError(f"{url[:200]!r} is not part of this task; its sites are {pages}", "not_allowed")
        return target

    async def _goto(self, url: str) -> None:
        from playwright.async_api import Error

        try:
            await self.tab.goto(url, self.session.browser.limits.load_s)
        except TimeoutError:
            self.session.note("The page is still loading.")
        except Error as error:
            if not self.session.browser.is_alive:
                raise
            if "ERR_ABORTED" not in str(error):  # a download, or 204: the page stays
                raise ToolError(f"{url} did not open: {str(error).splitlines()[0]}", "impossible_action") from None

    def _tab_number(self, number: int) -> int:
        if number > len(self.session.tabs):
            raise ToolError(f"no tab {number}; there are {len(self.session.tabs)}", "unknown_id")
        return number - 1
