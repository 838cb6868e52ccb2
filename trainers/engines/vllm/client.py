"""Client of one vLLM server over HTTP. Every call has a timeout, and every error says what the server did."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from agentgym.canonical import is_whole, read_json
from agentgym.errors import EngineError, UsageError
from agentgym.http_limits import limited_async_client
from agentgym.server_tokens import add_token
from agentgym.trainers.engines.vllm.load import ServerLoad, read_load
from agentgym.trainers.engines.vllm.versions import OLDEST, check_version
from agentgym.trainers.engines.vllm.wire import ServerFaultError
from agentgym.types import Json, JsonObject

NAME_PREFIX = "agentgym-"
"""Prefix of the model names of ``agentgym serve-model``; a random id follows, which is new at each start."""
_MAX_SHOWN = 300
_NOT_FOUND, _TOO_MANY, _SERVER_ERROR = 404, 429, 500


class WrongServerError(UsageError):
    """A server that answers but does not fit this run, for example because it serves another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts by which a server's model is recognised."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The weights that a server has, according to all of its workers."""

    version: int
    checksum: str


_MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Largest size of an answer. Log-probabilities of a long prompt take megabytes."""


def make_http() -> httpx.AsyncClient:
    """Create the HTTP client for all servers, without a connection limit (the pool decides) and without a proxy.

    Each request opens a new connection, which costs little compared with sampling. With keep-alive, a server can close
    a connection just as it is used again, and a healthy server would seem to have failed (seen with 0.32 on a busy
    machine). The server closes the connections, so that no local ports stay in TIME_WAIT.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return limited_async_client(
        max_bytes=_MAX_ANSWER_BYTES,
        limits=limits,
        timeout=None,
        trust_env=False,
        headers={"Connection": "close"},
        auth=add_token,
    )


class VllmClient:
    """The calls of one server.

    Every call raises:
        ServerFaultError: no connection, no answer in time, a server error, or an answer that is not JSON.
        EngineError: the server rejected the request itself; another server would, too.
    """

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.url = url.rstrip("/")
        self.vllm_version = ""
        """Version of the server's vLLM, known after :meth:`held`."""
        self.dtype = ""
        """Dtype of the server's computation, known after :meth:`held`."""
        self.can_sleep = True
        """False if the server keeps its memory when it is told to sleep; known after :meth:`held`."""
        self.takes: tuple[str, ...] | None = None
        """The ways of ``engine.weight_sync`` beside ``folder`` that the server was started for, known after
        :meth:`held`; None if it does not say."""
        self._http = http

    async def health(self, timeout_s: float) -> None:
        """Return True if the server reports that it is healthy."""
        await self._call("GET", "/health", timeout_s, expects_json=False)

    async def load(self, timeout_s: float) -> ServerLoad | None:
        """Return the server's load, None if it does not report one."""
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._http.request("GET", f"{self.url}/metrics")
        except (TimeoutError, httpx.HTTPError):
            return None
        return read_load(response.text) if response.is_success else None

    async def base_model(self, timeout_s: float) -> tuple[str, int]:
        """Return the name under which the model is served, and its context length in tokens.

        The name is random at each start, and every request contains it. A server that was restarted between two
        requests, and now has other weights, therefore rejects the second.

        Raises:
            WrongServerError: the server was not started by ``agentgym serve-model``.
        """
        cards = await self._models(timeout_s)
        bases = [card for card in cards if card.get("parent") is None]
        name, length = (bases[0].get("id"), bases[0].get("max_model_len")) if bases else (None, None)
        if not isinstance(name, str) or not is_whole(length):
            raise ServerFaultError("its list of models has none with a name and a length")
        if not name.startswith(NAME_PREFIX):
            raise WrongServerError(
                f"{self.url} serves {name!r} and was not started by agentgym serve-model, whose names are new at "
                "each start; without that a restarted server could serve old weights unnoticed"
            )
        return name, length

    async def adapters(self, timeout_s: float) -> tuple[str, ...]:
        """Return the names of the loaded adapters."""
        cards = await self._models(timeout_s)
        return tuple(str(card["id"]) for card in cards if card.get("parent") is not None and "id" in card)

    async def held(self, timeout_s: float, expected: ModelFacts | None = None) -> Held:
        """Return the weights that the server has.

        Raises:
            WrongServerError: the server has an unsupported version of vLLM, serves another model than ``expected``, or
                returns another kind of log-probabilities.
        """
        workers = await self.rpc("agentgym_held", {}, timeout_s)
        for worker in workers:
            self._check_worker(worker, expected)
        return self.same_held(workers)

    async def rpc(self, method: str, arguments: Mapping[str, object], timeout_s: float) -> list[JsonObject]:
        """Call a method of every worker, and return their answers."""
        body = {"method": method, "kwargs": dict(arguments), "timeout": timeout_s}
        answer = await self.post("/collective_rpc", body, timeout_s)
        results = _objects(answer, "results")
        if not results:
            raise ServerFaultError(f"{method} answered {_short(answer)}")
        for result in results:
            if result.get("error"):
                raise ServerFaultError(f"{method}: {result['error']}")
        return results

    async def get(self, path: str, timeout_s: float) -> Json:
        """Get JSON."""
        return await self._call("GET", path, timeout_s)

    async def post(
        self, path: str, body: Mapping[str, object], timeout_s: float | None, *, expects_json: bool = True
    ) -> Json:
        """Post JSON and return the JSON answer. Without ``timeout_s`` the caller limits the time."""
        return await self._call("POST", path, timeout_s, body, expects_json=expects_json)

    def same_held(self, workers: list[JsonObject]) -> Held:
        """Return the weights that all workers have; they must agree."""
        found = {(worker.get("version"), worker.get("checksum")) for worker in workers}
        version, checksum = found.pop()
        if found or not is_whole(version) or not isinstance(checksum, str):
            raise ServerFaultError("its workers hold different weights")
        return Held(version=version, checksum=checksum)

    def check_version(self, oldest: tuple[int, int] = OLDEST) -> None:
        """Check the version of vLLM that the server reports.

        Raises:
            WrongServerError: this run cannot use it.
        """
        try:
            check_version(self.vllm_version, self.url, oldest)
        except UsageError as error:
            raise WrongServerError(str(error)) from error

    def _check_worker(self, worker: JsonObject, expected: ModelFacts | None) -> None:
        self.vllm_version = str(worker.get("vllm_version") or "")
        self.dtype = str(worker.get("dtype") or "")
        self.can_sleep = worker.get("can_sleep") is not False  # an older serve-model does not say
        self.takes = tuple(map(str, takes)) if isinstance(takes := worker.get("takes"), list) else None
        self.check_version()
        mode = worker.get("logprobs_mode")
        if mode != "processed_logprobs":
            raise WrongServerError(
                f"{self.url} was started with --logprobs-mode {mode}; training needs processed_logprobs, those of the "
                "distribution that is sampled from"
            )
        if expected is None:
            return
        for name in ModelFacts.__dataclass_fields__:
            if worker.get(name) != getattr(expected, name):
                raise WrongServerError(
                    f"{self.url} serves another model: its {name} is {worker.get(name)}, "
                    f"this run's is {getattr(expected, name)}"
                )

    async def _models(self, timeout_s: float) -> list[JsonObject]:
        answer = await self.get("/v1/models", timeout_s)
        cards = _objects(answer, "data")
        if cards is None:
            raise ServerFaultError(f"its list of models is {_short(answer)}")
        return cards

    async def _call(
        self,
        method: str,
        path: str,
        timeout_s: float | None,
        body: Mapping[str, object] | None = None,
        *,
        expects_json: bool = True,
    ) -> Json:
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._http.request(method, self.url + path, json=body)
        except TimeoutError as error:
            raise ServerFaultError(f"{path} had no answer within {timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerFaultError(f"{path} failed: {str(error) or type(error).__name__}") from error
        code = response.status_code
        if code >= _SERVER_ERROR or code in (_NOT_FOUND, _TOO_MANY):
            raise ServerFaultError(f"{path} answered {code}: {_short(response.text)}")
        if not response.is_success:
            raise EngineError(f"{self.url}{path} refused the request with {code}: {_short(response.text)}")
        if not expects_json:
            return None
        try:
            answer: Json = read_json(response.content)
        except ValueError as error:
            raise ServerFaultError(f"{path} answered no JSON: {_short(response.text)}") from error
        return answer


def _objects(answer: Json, key: str) -> list[JsonObject] | None:
    """Return the list of objects under a key of an answer, None if there is no such list."""
    values = answer.get(key) if isinstance(answer, Mapping) else None
    if not isinstance(values, list):
        return None
    objects = [value for value in values if isinstance(value, Mapping)]
    return objects if len(objects) == len(values) else None


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
