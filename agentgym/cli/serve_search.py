"""``agentgym serve-search``: serve searches in a corpus over HTTP for many rollout workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, Output
from agentgym.errors import require_extra
from agentgym.ports import reachable


def serve_search(  # one per option
    corpus: Annotated[
        Path, typer.Argument(help="A file with one JSON object per line: id, title, text, optionally url.")
    ],
    backend: Annotated[str, typer.Option(help="fts5, tantivy, dense or hybrid.")] = "fts5",
    model: Annotated[str, typer.Option(help="Model of sentence-transformers, for dense and hybrid.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8001,
    host: Annotated[str, typer.Option(help="Keep it on a network of your own: nothing asks for a password.")] = (
        "127.0.0.1"
    ),
    workers: Annotated[int, typer.Option(min=1, help="Number of processes, which share one index.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Index a corpus unless its index exists, and serve searches in it until Ctrl-C."""
    require_extra("serve-search", "serve", "fastapi", "uvicorn")
    from agentgym.tools.retrieval.server import bound_socket, retriever_for, serve, settings_to_environment

    out = Output(as_json)
    listening = bound_socket(host, port)  # check now rather than after an hour of indexing
    retriever = retriever_for(corpus, backend, model)
    num_documents = len(retriever)
    retriever.close()
    settings_to_environment(corpus, backend, model)
    listening.listen(1024)  # from here on the port is open, so clients wait instead of being rejected
    url = f"http://{reachable(host, listening.getsockname()[1])}"
    out.announce(
        {"url": url, "corpus": str(corpus), "backend": backend, "num_documents": num_documents},
        f"serving {num_documents} documents of {corpus} at [bold]{url}[/] ({backend})",
    )
    try:
        serve(listening, workers)
    except KeyboardInterrupt:
        out.status.print("stopped")
