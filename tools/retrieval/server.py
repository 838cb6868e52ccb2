"""One index for many rollout workers: a retriever behind HTTP (the only module of the tools that imports FastAPI).

Beside routes of our own there is ``/retrieve``, with the request and answer of Search-R1's retrieval server, which
other trainers' search tools speak to.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from uvicorn.supervisors import Multiprocess

from agentgym.errors import InfrastructureError, ToolError, UsageError
from agentgym.tools.retrieval import wire
from agentgym.tools.retrieval.corpus import jsonl_corpus
from agentgym.tools.retrieval.embedders import SentenceTransformerEmbedder
from agentgym.tools.retrieval.indexes import IndexOptions, open_retriever
from agentgym.tools.retrieval.types import Retriever, adocument, asearch

SETTINGS = "AGENTGYM_SEARCH_SERVER"
"""Environment variable by which worker processes learn what to serve: JSON of corpus, backend and model."""
MAX_QUERIES = 256
"""Of one request to ``/retrieve``."""


class SearchRequest(BaseModel):
    """``POST /search``."""

    query: str
    k: int = Field(default=5, ge=0, le=1000)


class DocumentRequest(BaseModel):
    """``POST /document``: ids may be URLs, which do not fit into a path."""

    doc_id: str


class RetrieveRequest(BaseModel):
    """``POST /retrieve``, as Search-R1's."""

    queries: list[str] = Field(max_length=MAX_QUERIES)
    topk: int | None = Field(default=None, ge=0, le=1000)
    return_scores: bool = False


def search_app(retriever: Retriever, name: str = "") -> FastAPI:
    """The web app over a retriever.

    A local retriever answers in the event loop: its millisecond is less than handing work to a thread and back costs.

    Args:
        name: says in ``/health`` what is served.
    """
    app = FastAPI(title="agentgym search", openapi_url=None)

    @app.post("/search")
    async def search(request: SearchRequest) -> JSONResponse:
        hits = await asearch(retriever, request.query, request.k)
        return JSONResponse({"hits": [asdict(hit) for hit in hits]})

    @app.post("/document")
    async def document(request: DocumentRequest) -> JSONResponse:
        found = await adocument(retriever, request.doc_id)
        return JSONResponse({"document": {"id": found.id, "title": found.title, "text": found.text, "url": found.url}})

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> JSONResponse:
        k = wire.DEFAULT_TOPK if request.topk is None else request.topk
        return JSONResponse(
            {"result": [await _retrieved(retriever, query, k, request.return_scores) for query in request.queries]}
        )

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok", "num_documents": len(retriever), "name": name, "pid": os.getpid()})

    @app.exception_handler(ToolError)
    async def policy_error(_: Request, error: ToolError) -> JSONResponse:
        body = {"error": {"type": error.error_type, "message": str(error)}}
        return JSONResponse(body, status_code=wire.POLICY_STATUS)

    @app.exception_handler(InfrastructureError)
    async def failure(_: Request, error: InfrastructureError) -> JSONResponse:
        return JSONResponse({"failure": f"{type(error).__name__}: {error}"}, status_code=503)

    return app


async def _retrieved(retriever: Retriever, query: str, k: int, with_scores: bool) -> list[Any]:
    try:
        hits = await asearch(retriever, query, k)
    except ToolError:
        hits = ()  # one empty query of a batch spoils no other's answer
    documents = [wire.contents_of(await adocument(retriever, hit.doc_id)) for hit in hits]
    if not with_scores:
        return documents
    return [{"document": found, "score": hit.score} for found, hit in zip(documents, hits, strict=True)]


def settings_to_environment(corpus: Path, backend: str, model: str) -> None:
    """Tell processes that are started from here what :func:`app_from_environment` serves."""
    os.environ[SETTINGS] = json.dumps({"corpus": str(corpus), "backend": backend, "model": model})


def app_from_environment() -> FastAPI:
    """The app for a process that uvicorn has started."""
    settings = json.loads(os.environ[SETTINGS])
    return search_app(
        retriever_for(Path(settings["corpus"]), settings["backend"], settings["model"]), settings["corpus"]
    )


def retriever_for(corpus: Path, backend: str, model: str) -> Retriever:
    """The retriever a server is to serve.

    Raises:
        UsageError: there is no such corpus or backend, or the backend needs a model and none is named.
    """
    embedder = SentenceTransformerEmbedder(model) if model else None
    return open_retriever(jsonl_corpus(corpus), IndexOptions(backend=backend, embedder=embedder))


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at an address, not yet listening.

    Raises:
        UsageError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise UsageError(
            f"port {port} of {host} cannot be used ({error.strerror}); choose another by --port"
        ) from error
    return made


def serve(listening: socket.socket, workers: int) -> None:
    """Serve what :func:`settings_to_environment` named, until a signal."""
    config = uvicorn.Config(
        f"{__name__}:{app_from_environment.__name__}",
        factory=True,
        workers=workers,
        log_level="warning",
        access_log=False,
    )
    if workers == 1:
        uvicorn.Server(config).run(sockets=[listening])
    else:
        Multiprocess(config, sockets=[listening]).run()
