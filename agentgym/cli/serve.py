"""``agentgym serve``: serve environments over WebSocket and HTTP."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, Output
from agentgym.errors import UsageError, require_extra, unknown_name
from agentgym.ports import reachable
from agentgym.registry import find, make


def serve(  # noqa: PLR0913, PLR0917  # one per option
    envs: Annotated[list[str], typer.Argument(metavar="ENV...", help="Ids, module:Id or file.py:Id.")],
    host: Annotated[str, typer.Option(help="Address to listen on; all but loopback need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that clients must send. [default: AGENTGYM_SERVER_TOKEN]"),
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Most sessions at the same time.")] = 4096,
    idle_timeout_s: Annotated[
        float, typer.Option(help="Seconds without a heartbeat after which a session is closed.")
    ] = 60.0,
    step_timeout_s: Annotated[float, typer.Option(help="Time limit of a reset or a step, in seconds.")] = 300.0,
    drain_s: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for open sessions after SIGTERM.")] = 30.0,
    processes: Annotated[
        int | None,
        typer.Option(
            min=0, help="Processes for blocking environments; 0 uses threads. [default: one per core, at most 8]"
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="agentgym, or openenv for clients of OpenEnv (one environment only).")
    ] = "agentgym",
    as_json: JsonFlag = False,
) -> None:
    """Serve environments to trainers and agents on other machines, until Ctrl-C or SIGTERM."""
    require_extra("serve", "serve", "fastapi", "uvicorn", "websockets")
    from agentgym.server.limits import Limits
    from agentgym.server.run import serve as run
    from agentgym.server.sessions import Sessions
    from agentgym.server.workers import Workers, default_num_processes
    from agentgym.tools.retrieval.server import bound_socket

    out = Output(as_json)  # before modules of environments print what is no JSON
    if protocol != "agentgym":
        _serve_openenv(envs, protocol, host, port, max_sessions, out)
        return
    token = _token(token_file)
    _check_host(host, token)
    limits = Limits(max_sessions=max_sessions, idle_timeout_s=idle_timeout_s, step_timeout_s=step_timeout_s)
    num_processes = default_num_processes() if processes is None else processes
    sessions = Sessions(envs, limits, Workers(envs, limits, num_processes) if num_processes else None)
    listening = bound_socket(host, port)
    listening.listen(4096)  # from here on the port is open, so clients wait instead of being rejected
    url = f"ws://{reachable(host, listening.getsockname()[1])}"
    out.announce({"url": url, "envs": sessions.env_ids}, f"serving {', '.join(sessions.env_ids)} at [bold]{url}[/]")
    try:
        run(listening, sessions, token, drain_s, out.status.print)
    except KeyboardInterrupt:
        out.status.print("stopped")


def _token(token_file: Path | None) -> str:
    from agentgym.remote.wire import TOKEN_VARIABLE

    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"--token-file: {error}") from error
    if not token:
        raise UsageError(f"--token-file: {token_file} is empty")
    return token


def _check_host(host: str, token: str) -> None:
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and not token:
        raise UsageError(
            f"--host {host} lets other machines run environments here; add --token-file FILE, or use 127.0.0.1"
        )


def _serve_openenv(  # one parameter per option
    envs: list[str], protocol: str, host: str, port: int, max_sessions: int, out: Output
) -> None:
    """Serve one environment with OpenEnv's protocol, on loopback only, since the protocol has no tokens."""
    if protocol != "openenv":
        raise unknown_name("protocol", protocol, ("agentgym", "openenv"))
    require_extra("serve --protocol openenv", "openenv", "openenv")
    if len(envs) != 1 or host not in ("127.0.0.1", "localhost"):
        raise UsageError(
            "OpenEnv's protocol has no tokens and serves a single environment; name one, and use --host 127.0.0.1"
        )
    from agentgym.interop.openenv_server import make_app
    from agentgym.interop.openenv_server import serve as run
    from agentgym.tools.retrieval.server import bound_socket

    entry = find(envs[0])
    app = make_app(lambda: make(entry.id), max_sessions)
    listening = bound_socket(host, port)
    listening.listen(4096)
    url = f"http://{host}:{listening.getsockname()[1]}"
    out.announce({"url": url, "envs": [entry.id]}, f"serving {entry.id} by OpenEnv's protocol at [bold]{url}[/]")
    try:
        run(listening, app)
    except KeyboardInterrupt:
        out.status.print("stopped")
