"""A policy behind any OpenAI-compatible endpoint: for evaluation alone, since no token ids come from there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import httpx

from agentgym.canonical import read_json
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import EngineError, UsageError, unknown_name
from agentgym.http_limits import limited_async_client
from agentgym.render.families import FORMATS
from agentgym.rollout.agent import Agent, Decision, MakeAgent
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.engines.openai.escape import escaped_messages, escaped_tool
from agentgym.trainers.engines.openai.text_tools import TextTools
from agentgym.trainers.engines.openai.wire import Conversation, Said, WireMessage, read_answer, shown
from agentgym.types import Json, JsonSchema, Message, Observation, ToolSpec

KEY_VARIABLE: Final = "OPENAI_API_KEY"
_REFUSED_KEY: Final = (401, 403)
_NOT_FOUND, _BAD_REQUEST, _TIMEOUT, _TOO_MANY, _SERVER_ERROR = 404, 400, 408, 429, 500
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_NUM_SEED_BITS: Final = 31
"""Some servers keep seeds in 32 bits."""
_LIMIT, _NEW_LIMIT = "max_tokens", "max_completion_tokens"
_OPTIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    "model": str,
    "timeout_s": float,
    "num_tries": int,
    "tools": str,
    "format": str,
}
_LOCAL: Final = ("127.0.0.1", "localhost", "::1")


class ContextFullError(EngineError):
    """The conversation no longer fits the model: the episode's end, and no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is, and how patiently it is asked."""

    url: str
    """Up to and with ``/v1``."""
    model: str = ""
    """Its name there; empty takes the only one that the endpoint lists."""
    timeout_s: float = 300.0
    """Of one request."""
    num_tries: int = 6
    """Requests for one completion while the server is busy or lost; 1, 2, 4, 8, 16 s pass between them."""
    tools: str = "server"
    """``server``: it is sent the tools, and reads the calls. ``text``: the first message describes them, and calls are
    read here, for servers and models that take no tools."""
    format: str = "hermes"
    """Tool-call format of ``tools=text``."""


def parse_endpoint(text: str) -> Endpoint:
    """An endpoint as commands take it, such as ``http://127.0.0.1:8000/v1?model=NAME&timeout_s=60``.

    Raises:
        UsageError: it is no such thing.

    Example:
        >>> parse_endpoint("http://127.0.0.1:8000/v1?model=Qwen/Qwen3-4B").model
        'Qwen/Qwen3-4B'
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"expected openai:http://HOST:PORT/v1?model=NAME, got openai:{text}")
    if parts.username or parts.password:
        raise UsageError(f"leave the key out of the address, which is kept with the results: set {KEY_VARIABLE}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := next((name for name in given if name not in _OPTIONS), None):
        raise unknown_name("option of an endpoint", unknown, sorted(_OPTIONS))
    url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    try:
        options: dict[str, Any] = {name: _OPTIONS[name](value) for name, value in given.items()}
    except ValueError as error:
        raise UsageError(f"an endpoint's timeout_s and num_tries are numbers: {error}") from None
    endpoint = Endpoint(url=url, **options)
    if not endpoint.timeout_s > 0 or endpoint.num_tries < 1:
        raise UsageError("an endpoint's timeout_s must be above 0 and num_tries at least 1")
    if endpoint.tools not in ("server", "text"):
        raise UsageError(f"an endpoint's tools are server or text, got {endpoint.tools!r}")
    if endpoint.format not in FORMATS:
        raise unknown_name("tool-call format", endpoint.format, sorted(FORMATS))
    if "format" in given and endpoint.tools == "server":
        raise UsageError("the server reads the calls itself; leave out format=, or set tools=text")
    return endpoint


class OpenAIClient:
    """Asks one endpoint, with patience.

    Args:
        num_slots: requests at the same time.
        wait: waits for some seconds.

    Raises:
        EngineError: the endpoint is lost, still busy after all tries, refuses the request, or answers nonsense.
        ContextFullError: the conversation is too long for the model.
        UsageError: the key, the model's name or the address is wrong.
    """

    def __init__(
        self, endpoint: Endpoint, num_slots: int, wait: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.endpoint = endpoint
        self._slots = asyncio.Semaphore(num_slots)
        self._wait = wait
        self._limit_name = _LIMIT
        self._model = endpoint.model
        self._naming = asyncio.Lock()
        key = os.environ.get(KEY_VARIABLE)
        is_local = urlsplit(endpoint.url).hostname in _LOCAL
        self._http = limited_async_client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=num_slots),
            timeout=None,
            trust_env=not is_local,
        )

    async def complete(
        self, messages: Sequence[WireMessage], tools: Sequence[JsonSchema], sampling: SamplingParams
    ) -> Said:
        """The next assistant message of a conversation."""
        body: dict[str, object] = {
            "model": await self._model_name(),
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed % 2**_NUM_SEED_BITS,
        }
        if tools:
            body["tools"] = tools
        try:
            answer = await self._ask("POST", "/chat/completions", body | {self._limit_name: sampling.max_new_tokens})
        except _OtherLimitError:  # newer models of OpenAI's call it so
            self._limit_name = _NEW_LIMIT
            answer = await self._ask("POST", "/chat/completions", body | {_NEW_LIMIT: sampling.max_new_tokens})
        try:
            return read_answer(answer, len(messages))
        except EngineError as error:
            raise EngineError(f"{self.endpoint.url}: {error}") from None

    async def check(self) -> None:
        """Ask once whether anybody answers, before work begins that would wait for it.

        Raises:
            UsageError: nobody answers at the address, or the key is refused.
        """
        try:
            await self._ask_once("GET", "/models", None)
        except _BusyError as error:
            if not error.is_answer:
                raise UsageError(
                    f"the endpoint {self.endpoint.url} cannot be reached ({error}); start its server, or correct the "
                    "address"
                ) from None
        except (EngineError, _NotFoundError):
            pass  # somebody answers, if only that they list no models

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _model_name(self) -> str:
        async with self._naming:
            if not self._model:
                answer = await self._ask("GET", "/models", None)
                cards = answer.get("data") if isinstance(answer, Mapping) else None
                listed = cards if isinstance(cards, list) else []
                names = [str(card["id"]) for card in listed if isinstance(card, Mapping) and "id" in card]
                if len(names) != 1:
                    raise UsageError(
                        f"{self.endpoint.url} lists {len(names)} models; name one by ?model=NAME "
                        f"({shown(', '.join(names))})"
                    )
                self._model = names[0]
        return self._model

    async def _ask(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
        """The decoded answer; tries again while the server is busy or away."""
        wait_s, fault = 0.0, ""
        for number in range(self.endpoint.num_tries):
            if wait_s:
                await self._wait(wait_s)
            try:
                return await self._ask_once(method, path, body)
            except _BusyError as error:
                fault = str(error)
                wait_s = min(max(_FIRST_WAIT_S * 2**number, error.wait_s), _LONGEST_WAIT_S)
        raise EngineError(f"{self.endpoint.url}{path} failed {self.endpoint.num_tries} times, at last: {fault}")

    async def _ask_once(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
        try:
            async with self._slots, asyncio.timeout(self.endpoint.timeout_s):
                response = await self._http.request(method, self.endpoint.url + path, json=body)
        except TimeoutError:
            raise _BusyError(f"no answer within {self.endpoint.timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _BusyError(str(error) or type(error).__name__) from None
        if response.is_success:
            return self._decoded(response)
        fault = f"status {response.status_code}: {shown(response.text)}"
        if response.status_code >= _SERVER_ERROR or response.status_code in (_TOO_MANY, _TIMEOUT):
            raise _BusyError(fault, _asked_wait_s(response), is_answer=True)
        raise self._refusal(response, fault)

    def _decoded(self, response: httpx.Response) -> Json:
        try:
            answer: Json = read_json(response.content)
        except ValueError:
            raise EngineError(f"{self.endpoint.url} answered no JSON: {shown(response.text)}") from None
        return answer

    def _refusal(self, response: httpx.Response, fault: str) -> Exception:
        """What a refusal means: a mistake of the user's, a full context, or one request that cannot be."""
        url, code, text = self.endpoint.url, response.status_code, response.text
        if code in _REFUSED_KEY:
            return UsageError(f"{url} refuses the key; set {KEY_VARIABLE} ({fault})")
        if code == _NOT_FOUND:
            return _NotFoundError(f"{url} knows no model {self._model!r}, or no such address ({fault})")
        if code == _BAD_REQUEST and ("context_length_exceeded" in text or "maximum context length" in text):
            return ContextFullError(f"{url}: {fault}")
        if code == _BAD_REQUEST and self._limit_name == _LIMIT and _NEW_LIMIT in text:
            return _OtherLimitError(fault)
        return EngineError(f"{url} refused the request: {fault}")


class OpenAIAgent:
    """One episode of a policy behind an endpoint. The server holds nothing: each request is the whole conversation.

    ``generate_s`` of a decision is all the time until the answer, waiting for a busy server included.
    """

    def __init__(self, client: OpenAIClient, sampling: SamplingParams, seed: int) -> None:
        self._client, self._sampling, self._seed = client, sampling, seed
        self._num_decisions = 0

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        endpoint, specs = self._client.endpoint, [escaped_tool(tool) for tool in tools]
        self._in_text = TextTools(FORMATS[endpoint.format], specs) if endpoint.tools == "text" else None
        opening = escaped_messages(observation)
        self._conversation = Conversation(self._in_text.told(opening) if self._in_text else opening)
        self._tools = [] if self._in_text else [tool.as_function() for tool in specs]

    async def decide(self) -> Decision | None:
        sampling = SamplingParams(
            max_new_tokens=self._sampling.max_new_tokens,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            seed=derive_seed(self._seed, self._num_decisions),
        )
        started = time.perf_counter()
        try:
            said = await self._client.complete(self._conversation.messages, self._tools, sampling)
        except ContextFullError:
            return None
        self._num_decisions += 1
        self._conversation.add_action(said.wire)
        return Decision(
            action=self._in_text.read(said.action) if self._in_text else said.action,
            completion=said.completion,
            usage=said.usage,
            generate_s=time.perf_counter() - started,
        )

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        text, said = self._in_text, escaped_messages(replies)
        if played is not None:
            self._conversation.replace_action(text.written(played) if text else played)
        self._conversation.add_replies(text.replied(said) if text else said)

    async def end(self) -> None:
        pass


def endpoint_agents(client: OpenAIClient, sampling: SamplingParams) -> MakeAgent:
    """Agents that ask an endpoint."""

    def make_agent(env: Env, seed: int) -> Agent:
        return OpenAIAgent(client, sampling, seed)

    return make_agent


class _NotFoundError(UsageError):
    """There is no such model or address."""


class _BusyError(Exception):
    """The server may do better soon."""

    def __init__(self, fault: str, wait_s: float = 0.0, *, is_answer: bool = False) -> None:
        super().__init__(fault)
        self.wait_s, self.is_answer = wait_s, is_answer


class _OtherLimitError(Exception):
    """The model wants the limit of tokens under its other name."""


def _asked_wait_s(response: httpx.Response) -> float:
    """Seconds that the server asks to be left alone for; a date is not understood."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
