"""A client of ``agentgym serve-search`` with time limits, retries and a connection pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from agentgym.canonical import encodable, read_json
from agentgym.errors import ConfigError, EnvError, EnvTimeoutError, InfrastructureError, error_text
from agentgym.http_limits import limited_async_client, limited_client
from agentgym.proxies import by_proxy
from agentgym.server_tokens import TOKEN_VARIABLE, add_token
from agentgym.tools.retrieval import wire
from agentgym.tools.retrieval.types import AsyncRetriever, Document, Hit

Answer = TypeVar("Answer")
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Time limits and retries of a client.

    Attributes:
        timeout_s: seconds for one attempt, including the connection.
        num_tries: number of attempts if an attempt gets no answer or the server reports a failure.
        backoff_s: seconds before the second attempt; doubled before each further one.
        max_connections: most connections at the same time.

    Raises:
        ConfigError: a value is not positive.
    """

    timeout_s: float = 10.0
    num_tries: int = 4
    backoff_s: float = 0.25
    max_connections: int = 64

    def __post_init__(self) -> None:
        if min(self.timeout_s, self.num_tries, self.max_connections) <= 0 or self.backoff_s < 0:
            raise ConfigError(f"time limits, tries and connections must be positive; got {self}")


class RemoteRetriever(AsyncRetriever):
    """A search server as a retriever.

    A mistake of the policy raises the same :class:`~agentgym.errors.ToolError` as on the server. If the server is down,
    too slow or answers with invalid data, the error is an :class:`~agentgym.errors.EnvError` or ``EnvTimeoutError``
    that names it. A rollout then retries the episode in a new environment and gives no reward for the failure.

    Args:
        url: URL of the server, as ``agentgym serve-search`` prints it.
    """

    def __init__(self, url: str, options: ClientOptions | None = None) -> None:
        self.url = url.rstrip("/")
        self._options = options or ClientOptions()
        self._settings: dict[str, Any] = {
            "base_url": self.url,
            "to": self.url,
            "timeout": self._options.timeout_s,
            "auth": add_token,
            "limits": httpx.Limits(
                max_connections=self._options.max_connections,
                max_keepalive_connections=self._options.max_connections,
            ),
        }
        self._client = limited_client(**self._settings)
        self._async_client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = None
        self._num_documents: int | None = None

    def search(self, query: str, k: int) -> tuple[Hit, ...]:
        return self._ask("/search", {"query": _plain(query), "k": k}, wire.hits_from_json)

    async def asearch(self, query: str, k: int) -> tuple[Hit, ...]:
        return await self._aask("/search", {"query": _plain(query), "k": k}, wire.hits_from_json)

    def document(self, doc_id: str) -> Document:
        return self._ask("/document", {"doc_id": _plain(doc_id)}, wire.document_from_json)

    async def adocument(self, doc_id: str) -> Document:
        return await self._aask("/document", {"doc_id": _plain(doc_id)}, wire.document_from_json)

    def __len__(self) -> int:
        if self._num_documents is None:
            self._num_documents = self._ask("/health", None, lambda body: int(body["num_documents"]))
        return self._num_documents

    def close(self) -> None:
        """Close the connections; those of a running loop are closed when the loop ends."""
        self._client.close()
        self._async_client = None

    # ---------------------------------------------------------------------------------------------------- private

    def _ask(self, path: str, body: dict[str, Any] | None, read: Callable[[Any], Answer]) -> Answer:
        method = "GET" if body is None else "POST"
        for num_tried in range(1, self._options.num_tries + 1):
            try:
                response = self._client.request(method, path, json=body)
            except httpx.HTTPError as error:
                failure = self._failure(path, error)
            else:
                if response.status_code not in _TRY_AGAIN:
                    return self._read(path, response, read)
                failure = self._failed_by(path, response)
            if num_tried < self._options.num_tries:
                time.sleep(self._wait_s(num_tried))
        raise failure

    async def _aask(self, path: str, body: dict[str, object], read: Callable[[object], Answer]) -> Answer:
        client = self._client_of_this_loop()
        for num_tried in range(1, self._options.num_tries + 1):
            try:
                response = await client.post(path, json=body)
            except httpx.HTTPError as error:
                failure = self._failure(path, error)
            else:
                if response.status_code not in _TRY_AGAIN:
                    return self._read(path, response, read)
                failure = self._failed_by(path, response)
            if num_tried < self._options.num_tries:
                await asyncio.sleep(self._wait_s(num_tried))
        raise failure

    def _client_of_this_loop(self) -> httpx.AsyncClient:
        # Connections belong to an event loop, and each synchronous step of an environment brings a new loop.
        loop = asyncio.get_running_loop()
        if self._async_client is None or self._async_client[0] is not loop:
            self._async_client = (loop, limited_async_client(**self._settings))
        return self._async_client[1]

    def _wait_s(self, num_tried: int) -> float:
        return float(self._options.backoff_s * 2 ** (num_tried - 1))

    def _read(self, path: str, response: httpx.Response, read: Callable[[object], Answer]) -> Answer:
        if response.status_code in (401, 403) and b"ForbiddenError" in response.content:
            raise EnvError(
                f"{self.url} refuses this client: set {TOKEN_VARIABLE} to the token that `agentgym serve-search` "
                f"printed ({response.text[:200]!r}){by_proxy(self.url)}"
            )
        try:
            body = read_json(response.content)
            if response.status_code != wire.POLICY_STATUS:
                response.raise_for_status()
                return read(body)
            error = wire.policy_error_from_json(body)
        except (ValueError, TypeError, KeyError, httpx.HTTPStatusError) as nonsense:
            beginning = response.text[:200]
            raise EnvError(
                f"{self.url}{path} does not answer like a search server (status {response.status_code}, "
                f"{beginning!r}); is it agentgym serve-search?{by_proxy(self.url)}"
            ) from nonsense
        raise error

    def _failure(self, path: str, error: httpx.HTTPError) -> InfrastructureError:
        asked = f"the search server at {self.url} ({path}, {self._options.num_tries} tries)"
        if isinstance(error, httpx.TimeoutException):
            return EnvTimeoutError(f"{asked} did not answer within {self._options.timeout_s:g} s{by_proxy(self.url)}")
        how = error_text(error).rstrip(": ")
        return EnvError(
            f"{asked} cannot be reached: {how}{by_proxy(self.url)}; start it by: agentgym serve-search CORPUS"
        )

    def _failed_by(self, path: str, response: httpx.Response) -> InfrastructureError:
        return EnvError(
            f"the search server at {self.url} fails: {path}, status {response.status_code}, "
            f"{response.text[:300]!r}{by_proxy(self.url)}"
        )


def _plain(text: str) -> str:
    return encodable(wire.checked_text(text))
