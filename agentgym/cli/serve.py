"""``agentgym serve``: serve environments over WebSocket and HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, Output
from agentgym.cli.server_options import AllowHost, NoToken, TokenFile, access_of, token_text
from agentgym.errors import UsageError, require_extra, unknown_name
from agentgym.ports import reachable
from agentgym.registry import find, make
from agentgym.server_tokens import keeping_token
from agentgym.web_guard import Access, is_loopback


def serve(  # noqa: PLR0913, PLR0917  # one per option
    envs: Annotated[list[str], typer.Argument(metavar="ENV...", help="Ids, module:Id or file.py:Id.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8765,
    token_file: TokenFile = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
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
    from agentgym.server.limits import ServerLimits
    from agentgym.server.run import serve as run
    from agentgym.server.sessions import Sessions
    from agentgym.server.workers import Workers, default_num_processes
    from agentgym.tools.retrieval.server import bound_socket

    out = Output(as_json)  # before modules of environments print what is no JSON
    if protocol != "agentgym":
        access = Access(host=host, names=tuple(allow_host or ()))
        _serve_openenv(envs, protocol, access, port, max_sessions, out)
        return
    access = access_of(host, token_file=token_file, no_token=no_token, allow_host=allow_host)
    limits = ServerLimits(max_sessions=max_sessions, idle_timeout_s=idle_timeout_s, step_timeout_s=step_timeout_s)
    num_processes = default_num_processes() if processes is None else processes
    workers = Workers(envs, limits, num_processes) if num_processes else None
    sessions = Sessions(envs, limits, workers, trusts_clients=bool(access.token))
    listening = bound_socket(host, port)
    bound_port = listening.getsockname()[1]
    url = f"ws://{reachable(host, bound_port)}"
    with keeping_token(bound_port, access.token):
        listening.listen(4096)  # from here on the port is open, so clients wait instead of being rejected
        text = f"serving {', '.join(sessions.env_ids)} at [bold]{url}[/]\n{token_text(access, token_file)}"
        out.announce({"url": url, "envs": sessions.env_ids, "token": access.token}, text)
        try:
            run(listening, sessions, access, drain_s, out.status.print)
        except KeyboardInterrupt:
            out.status.print("stopped")


def _serve_openenv(  # one parameter per option
    envs: list[str], protocol: str, access: Access, port: int, max_sessions: int, out: Output
) -> None:
    """Serve one environment with OpenEnv's protocol, on loopback only, since the protocol has no tokens."""
    if protocol != "openenv":
        raise unknown_name("protocol", protocol, ("agentgym", "openenv"))
    require_extra("serve --protocol openenv", "openenv", "openenv")
    if len(envs) != 1 or not is_loopback(access.host):
        raise UsageError(
            "OpenEnv's protocol has no tokens and serves a single environment; name one, and use --host 127.0.0.1"
        )
    from agentgym.interop.openenv_server import make_app
    from agentgym.interop.openenv_server import serve as run
    from agentgym.tools.retrieval.server import bound_socket

    entry = find(envs[0])
    app = make_app(lambda: make(entry.id), max_sessions)
    listening = bound_socket(access.host, port)
    listening.listen(4096)
    url = f"http://{reachable(access.host, listening.getsockname()[1])}"
    out.announce({"url": url, "envs": [entry.id]}, f"serving {entry.id} by OpenEnv's protocol at [bold]{url}[/]")
    try:
        run(listening, app, access)
    except KeyboardInterrupt:
        out.status.print("stopped")
