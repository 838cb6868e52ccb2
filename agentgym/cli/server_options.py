"""Options that all servers share: who may reach them, and with which token."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from agentgym.errors import UsageError
from agentgym.server_tokens import TOKEN_VARIABLE, made_token, token_in
from agentgym.web_guard import Access, is_loopback

TokenFile = Annotated[
    Path | None,
    typer.Option(help=f"File with the token that clients must send. [default: {TOKEN_VARIABLE}, else a new one]"),
]
NoToken = Annotated[bool, typer.Option("--no-token", help="Ask for no token; on loopback only.")]
AllowHost = Annotated[
    list[str] | None, typer.Option(help="A further name of this server in the URLs of its clients; repeatable.")
]


def access_of(host: str, *, token_file: Path | None, no_token: bool, allow_host: list[str] | None) -> Access:
    """Return who may use a server.

    Args:
        host: the address to listen on.
        token_file: file with the token; by default the environment variable or a new token.
        no_token: True to ask for no token.
        allow_host: further names of the server.

    Raises:
        UsageError: the options contradict each other, or a server without a token would be open to other machines.
    """
    if no_token and token_file is not None:
        raise UsageError("--no-token and --token-file exclude each other")
    if no_token and not is_loopback(host):
        raise UsageError(f"--host {host} is open to other machines; leave out --no-token, or use --host 127.0.0.1")
    token = ""
    if not no_token:
        token = os.environ.get(TOKEN_VARIABLE, "") if token_file is None else token_in(token_file, "--token-file")
    return Access(host=host, names=tuple(allow_host or ()), token=token or ("" if no_token else made_token()))


def token_text(access: Access, token_file: Path | None) -> str:
    """Return the line that tells a person about the token; a token of the user's own is not printed."""
    if not access.token:
        return "no token: every program on this machine may use it"
    if token_file is not None or os.environ.get(TOKEN_VARIABLE):
        return f"token: as given by {token_file or TOKEN_VARIABLE}"
    return f"token: {access.token} (your programs on this machine find it; elsewhere: export {TOKEN_VARIABLE}=TOKEN)"
