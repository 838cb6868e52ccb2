"""``agentgym view --live``: the report of a run that goes on, served to a browser on this machine."""

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

POLL_S = 1.0
_LOOKS = 5
"""Times in a second that a stream looks whether the server ends."""
_NO_EPISODES = 0.0


def make_app(run_dir: Path, megabytes: float, is_over: Callable[[], bool] = lambda: False) -> FastAPI:
    """Return the web app: the page, its curves alone, and a stream of what the run does now.

    Args:
        is_over: ends the stream, which would hold up the server's end.

    Raises:
        UsageError: there is no such folder.
        CorruptDataError: it is no run.
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
    """Return what the page is told: a version that changes with the curves, and what the run does now."""
    try:
        return {"version": version_of(run_dir), "now": now_of(open_run_folder(run_dir))}
    except (AgentGymError, OSError) as error:  # a row may be half written
        return {"version": version_of(run_dir), "now": [("state", f"cannot be read now: {error}", True)]}


class _Server(uvicorn.Server):
    """Ends its streams before it waits for them."""

    ended: threading.Event

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        self.ended.set()
        await super().shutdown(sockets)


def serve(run_dir: Path, megabytes: float, port: int, say: Any) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        UsageError: the port is taken.
    """
    from agentgym.tools.retrieval.server import bound_socket

    ended = threading.Event()
    app = make_app(run_dir, megabytes, ended.is_set)
    listening = bound_socket("127.0.0.1", port)
    say(f"http://127.0.0.1:{listening.getsockname()[1]}")
    server = _Server(uvicorn.Config(app, log_level="warning"))
    server.ended = ended
    server.run(sockets=[listening])
