"""Shared parts of the browser tests: pages given as text, and the mark of tests that need Chromium."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from agentgym.envs.gui.chromium import INSTALL, has_chromium
from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.site import Request, Response, Sites
from agentgym.types import Task, ToolResult

NEEDS_CHROMIUM = [pytest.mark.gui, pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")]
Pages = Mapping[str, str | Response]


class PageSite:
    """A site with pages by path, which records the requests."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.requests: list[Request] = []

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        found = self.pages.get(request.path)
        if found is None:
            return Response(status=404, body=b"<h1>Not found</h1>")
        return found if isinstance(found, Response) else Response(body=f"<!doctype html>{found}".encode())


class PageEnv(GuiEnv):
    """An environment over pages; the episode ends with ``done``."""

    def __init__(self, pages: Pages | str, host: str = "page.localhost", **options: Any) -> None:
        self.host = host
        self.site = PageSite({"/": pages} if isinstance(pages, str) else pages)
        super().__init__(**options)

    def sites(self, task: Task) -> Sites:
        return {self.host: self.site}

    async def set_up(self, task: Task) -> str:
        return "Look around."

    async def score(self) -> float | None:
        return None if self.answer is None else 1.0

    def do(self, line: str) -> ToolResult:
        """Make one call in text form; return the tool's result, whose content also shows the page."""
        message = self.step(line)[0][-1]
        assert message.result is not None
        return ToolResult(message.text, message.result.name, message.result.call_id, message.result.error_type)

    def js(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        from agentgym.envs.gui.pool import driver

        return driver().call(self.evaluate(expression))


@contextmanager
def opened(pages: Pages | str, seed: int = 0, **options: Any) -> Iterator[PageEnv]:
    """Return an environment that shows its first page."""
    env = PageEnv(pages, **options)
    try:
        env.reset(seed=seed)
        yield env
    finally:
        env.close()
