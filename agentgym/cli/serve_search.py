"""``agentgym serve-search``: serve searches in a corpus over HTTP for many rollout workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, Output
from agentgym.cli.server_options import AllowHost, NoToken, TokenFile, access_of, token_text
from agentgym.errors import require_extra
from agentgym.ports import reachable
from agentgym.server_tokens import keeping_token


def serve_search(  # noqa: PLR0913, PLR0917  # one per option
    corpus: Annotated[
        Path, typer.Argument(help="A file with one JSON object per line: id, title, text, optionally url.")
    ],
    backend: Annotated[str, typer.Option(help="fts5, tantivy, dense or hybrid.")] = "fts5",
    model: Annotated[str, typer.Option(help="Model of sentence-transformers, for dense and hybrid.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8001,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token_file: TokenFile = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes, which share one index.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Index a corpus unless its index exists, and serve searches in it until Ctrl-C."""
    require_extra("serve-search", "serve", "fastapi", "uvicorn")
    from agentgym.tools.retrieval.server import bound_socket, retriever_for, serve, settings_to_environment

    out = Output(as_json)
    access = access_of(host, token_file=token_file, no_token=no_token, allow_host=allow_host)
    listening = bound_socket(host, port)  # check now rather than after an hour of indexing
    retriever = retriever_for(corpus, backend, model)
    num_documents = len(retriever)
    retriever.close()
    settings_to_environment(corpus, backend, model, access)
    bound_port = listening.getsockname()[1]
    url = f"http://{reachable(host, bound_port)}"
    value = {"url": url, "corpus": str(corpus), "backend": backend, "num_documents": num_documents}
    text = f"serving {num_documents} documents of {corpus} at [bold]{url}[/] ({backend})"
    with keeping_token(bound_port, access.token):
        listening.listen(1024)  # from here on the port is open, so clients wait instead of being rejected
        out.announce({**value, "token": access.token}, f"{text}\n{token_text(access, token_file)}")
        try:
            serve(listening, workers)
        except KeyboardInterrupt:
            out.status.print("stopped")
