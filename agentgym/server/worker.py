"""A worker process for blocking environments: the child's side of :mod:`agentgym.server.workers`.

Started as ``python -m agentgym.server.worker FD LIMITS ENV...``. It answers trainers' requests as the server does, over
the socket with file descriptor ``FD``, and ends when the socket is closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import replace
from typing import Any, Final

from agentgym.remote import wire
from agentgym.server.frames import read_frame, write_frame
from agentgym.server.limits import ServerLimits
from agentgym.server.session import LeftBehindError
from agentgym.server.sessions import Sessions

CLOSE_S: Final = 10.0
"""Seconds for closing environments, after which the process ends in any case."""
_NEVER_S: Final = 1e9


async def answer_all(connection: socket.socket, sessions: Sessions) -> None:
    """Answer requests until the server closes the connection."""
    reader, writer = await asyncio.open_connection(sock=connection)
    working: set[asyncio.Task[None]] = set()

    async def answer(request: dict[str, Any]) -> None:
        try:
            reply = wire.encode({"id": request["id"], "ok": await sessions.ask(request)})
        except Exception as error:
            told = {"error": wire.error_as_json(error), "is_left_behind": isinstance(error, LeftBehindError)}
            reply = wire.encode({"id": request["id"], **told})
        write_frame(writer, reply)

    while (frame := await read_frame(reader)) is not None:
        task = asyncio.create_task(answer(wire.decode(frame)))
        working.add(task)
        task.add_done_callback(working.discard)
    async with asyncio.timeout(CLOSE_S):
        await sessions.close_all()


def main(arguments: list[str]) -> None:
    """Run until the server closes the connection. A thread with a hung environment does not delay the exit."""
    connection = socket.socket(fileno=int(arguments[0]))
    limits = wire.read(ServerLimits, wire.decode(arguments[1]))
    # the server enforces limits and idle time-outs; here every session stays until it is closed
    limits = replace(limits, idle_timeout_s=_NEVER_S)
    try:
        asyncio.run(answer_all(connection, Sessions(arguments[2:], limits, serves_server=True)))
    finally:
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
