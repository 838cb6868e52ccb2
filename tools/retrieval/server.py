"""An HTTP server of one index for many rollout workers. (The only module of the tools that imports FastAPI.)

In addition to its own routes, it has ``/retrieve`` with the request and response of Search-R1's retrieval server, which
search tools of other trainers use.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from agentgym.canonical import require_writable
from agentgym.errors import InfrastructureError, ToolError, UsageError, error_text
from agentgym.tools.retrieval import wire
from agentgym.tools.retrieval.body_limits import BodyLimits
from agentgym.tools.retrieval.corpus import jsonl_corpus
from agentgym.tools.retrieval.embedders import SentenceTransformerEmbedder
from agentgym.tools.retrieval.header_limit import PunctualHTTP
from agentgym.tools.retrieval.indexes import IndexOptions, open_retriever
from agentgym.tools.retrieval.inline import InlineIfFast
from agentgym.tools.retrieval.types import AsyncRetriever, Document, Hit, Retriever
from agentgym.web_guard import ACCESS_VARIABLE, Access, WebGuard

SETTINGS = "AGENTGYM_SEARCH_SERVER"
"""Environment variable that tells worker processes what to serve: JSON of corpus, backend and model."""
MAX_QUERIES = 256
"""Most queries of one request to ``/retrieve``."""
LIMITS: Mapping[str, Any] = {
    "limit_concurrency": 4096,  # connections of one process; further ones get 503
    "timeout_keep_alive": 30,
    "h11_max_incomplete_event_size": 64 * 1024,
    "http": PunctualHTTP,
}
"""Limits of connections, as settings of uvicorn."""


def _whole(text: str) -> str:
    require_writable(text)
    return text


Text = Annotated[str, AfterValidator(_whole)]
"""Text without halves of surrogate pairs, which neither indexes nor responses can hold."""


class SearchRequest(BaseModel):
    """``POST /search``."""

    query: Text
    k: int = Field(default=5, ge=0, le=1000)


class DocumentRequest(BaseModel):
    """``POST /document``. It is a POST request because ids may be URLs, which do not fit into a path."""

    doc_id: Text


class RetrieveRequest(BaseModel):
    """``POST /retrieve``, in the format of Search-R1."""

    queries: list[Text] = Field(max_length=MAX_QUERIES)
    topk: int | None = Field(default=None, ge=0, le=1000)
    return_scores: bool = False


def search_app(retriever: Retriever, name: str = "") -> FastAPI:
    """Return the web app of a retriever.

    A slow local retriever answers in threads, so that a long search does not block others. Malformed requests get 400
    and the position of the fault, without the request's content.

    Args:
        retriever: the retriever to serve.
        name: name of the corpus in ``/health``.
    """
    app = FastAPI(title="agentgym search", openapi_url=None)
    app.add_middleware(BodyLimits)
    served = _Served(retriever)

    async def search(request: Request) -> Response:
        asked = _search_request(await request.body())
        hits = await served.asearch(wire.checked_text(asked.query), asked.k)
        return JSONResponse({"hits": [wire.json_of(hit) for hit in hits]})

    # FastAPI's own handling of a request costs as much as a search in memory
    app.add_route("/search", search, methods=["POST"])

    @app.post("/document")
    async def document(request: DocumentRequest) -> JSONResponse:
        found = await served.adocument(wire.checked_text(request.doc_id))
        return JSONResponse({"document": {"id": found.id, "title": found.title, "text": found.text, "url": found.url}})

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> JSONResponse:
        k = wire.DEFAULT_TOPK if request.topk is None else request.topk
        return JSONResponse(
            {"result": [await _retrieved(served, query, k, request.return_scores) for query in request.queries]}
        )

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok", "num_documents": len(retriever), "name": name, "pid": os.getpid()})

    @app.exception_handler(ToolError)
    async def policy_error(_: Request, error: ToolError) -> JSONResponse:
        body = {"error": {"type": error.error_type, "message": str(error)}}
        return JSONResponse(body, status_code=wire.POLICY_STATUS)

    @app.exception_handler(RequestValidationError)
    async def unreadable(_: Request, error: RequestValidationError) -> JSONResponse:
        faults = [{"loc": [str(at)[:100] for at in one["loc"]], "msg": one["msg"][:200]} for one in error.errors()[:10]]
        return JSONResponse({"detail": faults}, status_code=400)

    @app.exception_handler(InfrastructureError)
    async def failure(_: Request, error: InfrastructureError) -> JSONResponse:
        return JSONResponse({"failure": error_text(error)}, status_code=503)

    return app


def _search_request(body: bytes) -> SearchRequest:
    """Parse the body of ``POST /search``.

    Raises:
        RequestValidationError: it is something else.
    """
    try:
        return SearchRequest.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in faults]) from None


class _Served:
    """An asynchronous interface to a retriever. A slow local one runs in threads, one per CPU, each with its
    connection.
    """

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        threads = ThreadPoolExecutor(os.cpu_count() or 1, "search")
        self._search = InlineIfFast(self._search_now, threads)
        self._document = InlineIfFast(self._document_now, threads)

    def _search_now(self, query: str, k: int) -> tuple[Hit, ...]:
        return self._retriever.search(query, k)

    def _document_now(self, doc_id: str) -> Document:
        return self._retriever.document(doc_id)

    async def asearch(self, query: str, k: int) -> tuple[Hit, ...]:
        if isinstance(self._retriever, AsyncRetriever):
            return await self._retriever.asearch(query, k)
        return await self._search(query, k)

    async def adocument(self, doc_id: str) -> Document:
        if isinstance(self._retriever, AsyncRetriever):
            return await self._retriever.adocument(doc_id)
        return await self._document(doc_id)


async def _retrieved(served: _Served, query: str, k: int, with_scores: bool) -> list[Any]:
    try:
        hits = await served.asearch(wire.checked_text(query), k)
    except ToolError:
        hits = ()  # an invalid query of a batch does not affect the others
    documents = [wire.contents_of(await served.adocument(hit.doc_id)) for hit in hits]
    if not with_scores:
        return documents
    return [{"document": found, "score": hit.score} for found, hit in zip(documents, hits, strict=True)]


def settings_to_environment(corpus: Path, backend: str, model: str, access: Access) -> None:
    """Set the environment variables from which :func:`app_from_environment` of child processes reads its settings."""
    os.environ[SETTINGS] = json.dumps({"corpus": str(corpus), "backend": backend, "model": model})
    os.environ[ACCESS_VARIABLE] = json.dumps(asdict(access))


def app_from_environment() -> WebGuard:
    """Return the guarded web app in a process that uvicorn has started."""
    settings = json.loads(os.environ[SETTINGS])
    retriever = retriever_for(Path(settings["corpus"]), settings["backend"], settings["model"])
    return WebGuard(search_app(retriever, settings["corpus"]))


def retriever_for(corpus: Path, backend: str, model: str) -> Retriever:
    """Return the retriever that a server serves.

    Raises:
        UsageError: there is no such corpus or backend, or the backend needs a model and none is given.
    """
    embedder = SentenceTransformerEmbedder(model) if model else None
    return open_retriever(jsonl_corpus(corpus), IndexOptions(backend=backend, embedder=embedder))


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address but not yet listening.

    Raises:
        UsageError: the address cannot be used.
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


MOST_TO_START_S = 60
"""Seconds without an answer after which a worker is replaced. The default of five killed workers of busy machines while
they imported, again and again; and uvicorn waits as long for a worker that died while it started."""


def serve(listening: socket.socket, workers: int) -> None:
    """Serve the retriever set by :func:`settings_to_environment` until a signal arrives."""
    app = f"{__name__}:{app_from_environment.__name__}"
    config: dict[str, Any] = {"factory": True, "log_level": "warning", "access_log": False, **LIMITS}
    if workers == 1:
        uvicorn.Server(uvicorn.Config(app, **config)).run(sockets=[listening])
    else:  # by uvicorn.run, whose arguments stay from release to release: those of its Multiprocess did not
        config["timeout_worker_healthcheck"] = MOST_TO_START_S
        uvicorn.run(app, workers=workers, fd=listening.fileno(), **config)
