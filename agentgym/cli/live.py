"""``agentgym view --live``: serve the report of a running training to a browser on this machine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, StreamingResponse

from agentgym.errors import AgentGymError
from agentgym.report.now import now_of, version_of
from agentgym.report.page import render_report
from agentgym.report.run_folder import open_run_folder
from agentgym.web_guard import Access, WebGuard

POLL_S = 1.0
_LOOKS = 5
"""Times per second that a stream checks for the server's shutdown."""
_NO_EPISODES = 0.0


def make_app(run_dir: Path, megabytes: float, is_over: Callable[[], bool] = lambda: False) -> FastAPI:
    """Return the web app, which serves the page, its curves, and a stream of the run's current state.

    Args:
        run_dir: folder of the run.
        megabytes: size limit of the episodes in the page.
        is_over: returns True to end the streams, which would otherwise delay the server's shutdown.

    Raises:
        UsageError: there is no such folder.
        CorruptDataError: the folder is not a run.
    """
    open_run_folder(run_dir)
    app = FastAPI(openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return render_report(run_dir, megabytes, is_live=True)

    @app.get("/curves", response_class=HTMLResponse)
    def curves() -> str:
        return render_report(run_dir, _NO_EPISODES, is_live=True)

    @app.get("/events")
    def events() -> StreamingResponse:
        told = _told(run_dir, is_over)
        return StreamingResponse(told, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return app


async def _told(run_dir: Path, is_over: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield a message every second for as long as the page is open."""
    while not is_over():
        yield f"data: {json.dumps(await asyncio.to_thread(state_of, run_dir))}\n\n"
        for _ in range(_LOOKS):
            if not is_over():
                await asyncio.sleep(POLL_S / _LOOKS)


def state_of(run_dir: Path) -> dict[str, Any]:
    """Return the message for the page: a version that changes with the curves, and the run's current state."""
    try:
        return {"version": version_of(run_dir), "now": now_of(open_run_folder(run_dir))}
    except (AgentGymError, OSError) as error:  # the run may be writing a row at this moment
        return {"version": version_of(run_dir), "now": [("state", f"cannot be read now: {error}", True)]}


class _LiveServer(uvicorn.Server):
    """A server that ends its streams before it waits for connections to close."""

    ended: threading.Event

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        self.ended.set()
        await super().shutdown(sockets)


def serve(run_dir: Path, megabytes: float, port: int, token: str, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C. The address that is said holds the token, which the browser keeps in a cookie.

    Raises:
        UsageError: the port is in use.
    """
    from agentgym.tools.retrieval.server import bound_socket

    ended = threading.Event()
    app = make_app(run_dir, megabytes, ended.is_set)
    listening = bound_socket("127.0.0.1", port)
    listening.listen(64)  # before the address is said, so that a browser waits instead of being rejected
    bound_port = listening.getsockname()[1]
    access = Access(token=token, open_paths=(), cookie=f"agentgym-{bound_port}")
    say(f"http://127.0.0.1:{bound_port}" + (f"/?token={token}" if token else ""))
    server = _LiveServer(uvicorn.Config(WebGuard(app, access), log_level="warning"))
    server.ended = ended
    server.run(sockets=[listening])
