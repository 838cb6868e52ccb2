"""Search engines of the live web: your own SearxNG instance, or Brave's API with a key."""

from __future__ import annotations

import asyncio
import html
import os
import re
from typing import Any, Protocol

import httpx

from agentgym.canonical import read_json
from agentgym.errors import ConfigError, EnvError, EnvTimeoutError, InfrastructureError, ToolError, UsageError
from agentgym.http_limits import limited_async_client
from agentgym.proxies import by_proxy
from agentgym.tools.retrieval.types import Hit
from agentgym.tools.retrieval.words import query_words, snippet_of
from agentgym.tools.web.cassette import Cassette
from agentgym.tools.web.fetch import ssl_context

BRAVE_KEY = "BRAVE_API_KEY"
"""Environment variable with the key of Brave's API. Messages never show the key."""
BRAVE_URL = "https://api.search.brave.com/res/v1/web/search"
MAX_BRAVE_CHARS, MAX_BRAVE_WORDS, MAX_BRAVE_RESULTS = 400, 50, 20
"""Limits of Brave's API: characters and words of a query, and number of results."""
BACKOFF_S = 0.5
"""Seconds before the second attempt; doubled before each further one."""

_MARKUP = re.compile(r"<[^>]*>")
_TRY_AGAIN = frozenset({429, 500, 502, 503, 504})


class SearchEngine(Protocol):
    """A search engine for web pages."""

    @property
    def name(self) -> str:
        """Name under which cassettes store its answers."""
        ...

    async def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return the best ``k`` pages, with their URLs as ids.

        Raises:
            ToolError: of type ``invalid_query``, if the engine does not accept the query.
            InfrastructureError: the engine does not answer, rejects the key, or returns invalid data.
        """
        ...


class SearxNG:
    """An instance of SearxNG or searx, whose settings allow the format json (``search.formats`` in settings.yml).

    Args:
        url: URL of the instance.
    """

    name = "searxng"

    def __init__(self, url: str, *, timeout_s: float = 10.0, num_tries: int = 3) -> None:
        self._url = url.rstrip("/") + "/search"
        self._limits = (timeout_s, num_tries)

    async def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return the best ``k`` pages; see :meth:`SearchEngine.search`."""
        query_words(query)
        body = await _answer_of(self._url, {"q": query, "format": "json"}, {}, *self._limits)
        _refuse_silence(self._url, body)
        return _hits(self._url, k, lambda: [(r["url"], r.get("title"), r.get("content")) for r in body["results"]])


class BraveSearch:
    """Brave's web search API.

    Raises:
        ConfigError: the environment variable ``BRAVE_API_KEY`` is not set.
    """

    name = "brave"

    def __init__(self, *, url: str = BRAVE_URL, timeout_s: float = 10.0, num_tries: int = 3) -> None:
        key = os.environ.get(BRAVE_KEY, "")
        if not key:
            raise ConfigError(f"Brave's search API needs a key; set the environment variable {BRAVE_KEY}")
        self._url = url
        self._headers = {"X-Subscription-Token": key, "Accept": "application/json"}
        self._limits = (timeout_s, num_tries)

    async def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Return the best ``k`` pages, at most 20; see :meth:`SearchEngine.search`."""
        query_words(query)
        if len(query) > MAX_BRAVE_CHARS or len(query.split()) > MAX_BRAVE_WORDS:
            raise ToolError(
                f"the query is too long; at most {MAX_BRAVE_CHARS} characters and {MAX_BRAVE_WORDS} words",
                "invalid_query",
            )
        count = max(1, min(k, MAX_BRAVE_RESULTS))
        body = await _answer_of(self._url, {"q": query, "count": str(count)}, self._headers, *self._limits)
        return _hits(
            self._url,
            k,
            lambda: [
                (r["url"], r.get("title"), r.get("description")) for r in (body.get("web") or {}).get("results") or ()
            ],
        )


class RecordedEngine:
    """The engine name of a replayed cassette, whose :meth:`search` is never called.

    Raises:
        UsageError: the cassette has answers of no engine, or of several, for this date.
    """

    def __init__(self, cassette: Cassette) -> None:
        engines = cassette.engines()
        if len(engines) != 1:
            has = ", ".join(engines) or f"none; its dates are {', '.join(cassette.dates()) or 'none'}"
            raise UsageError(f"{cassette.path} must hold one engine's answers of {cassette.date!r}; it has {has}")
        self.name = engines[0]

    async def search(self, query: str, k: int) -> tuple[Hit, ...]:
        """Raise an error, since a replayed cassette answers all queries."""
        raise AssertionError("a replayed cassette asks no engine")


def _refuse_silence(url: str, body: object) -> None:
    """Raise an error for an empty answer that is due to failed engines of the instance, unlike a search without hits.

    Raises:
        EnvError: engines failed; the message names them and their errors.
    """
    if isinstance(body, dict) and not body.get("results") and (failed := body.get("unresponsive_engines")):
        said = "; ".join(": ".join(map(str, one)) if isinstance(one, list) else str(one) for one in failed)
        raise EnvError(f"the search engine at {url} got no answer from its engines: {said[:500]}")


async def _answer_of(
    url: str, parameters: dict[str, str], headers: dict[str, str], timeout_s: float, num_tries: int
) -> Any:
    """Return an engine's answer. Errors name the engine and the status, but no header, since headers hold keys."""
    failure: InfrastructureError
    async with limited_async_client(to=url, timeout=timeout_s, headers=headers, verify=ssl_context()) as client:
        for num_tried in range(1, num_tries + 1):
            try:
                response = await client.get(url, params=parameters)
            except httpx.TimeoutException:
                failure = EnvTimeoutError(
                    f"the search engine at {url} did not answer within {timeout_s:g} s{by_proxy(url)}"
                )
            except httpx.HTTPError as error:
                failure = EnvError(
                    f"the search engine at {url} cannot be reached: {type(error).__name__}{by_proxy(url)}"
                )
            else:
                if response.status_code == 200:
                    return _json(url, response)
                failure = _refused(url, response.status_code)
                if response.status_code not in _TRY_AGAIN:
                    raise failure
            if num_tried < num_tries:
                await asyncio.sleep(BACKOFF_S * 2 ** (num_tried - 1))
    raise failure


def _refused(url: str, status: int) -> EnvError:
    why = {
        401: "the key is wrong",
        403: "the key is wrong, or a SearxNG whose settings do not allow the format json",
        429: "too many queries for now",
    }.get(status, "it fails")
    return EnvError(f"the search engine at {url} answers with status {status}: {why}")


def _json(url: str, response: httpx.Response) -> object:
    try:
        return read_json(response.content)
    except ValueError as error:
        raise EnvError(f"the search engine at {url} returned invalid JSON") from error


def _hits(url: str, k: int, rows: Any) -> tuple[Hit, ...]:
    try:
        # a result without an address, such as a box with an answer, cannot be opened
        found = [(page, _plain(title), _plain(text)) for page, title, text in rows() if page and isinstance(page, str)]
    except (TypeError, KeyError, AttributeError) as error:
        raise EnvError(f"the search engine at {url} returned an unexpected structure: {error!r}") from error
    # Engines return only ranks, so derive a score that decreases with the rank.
    return tuple(
        Hit(page, title, snippet_of(text, ()), 1 / rank)
        for rank, (page, title, text) in enumerate(found[: max(k, 0)], 1)
    )


def _plain(text: object) -> str:
    return html.unescape(_MARKUP.sub("", str(text or "")))
