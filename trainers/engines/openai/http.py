"""A policy behind an OpenAI-compatible endpoint. It can only be evaluated, because endpoints return no token ids."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast
from urllib.parse import urlsplit

import httpx

from agentgym.canonical import read_json
from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import EngineError, PromptTooLongError, UsageError
from agentgym.http_limits import limited_async_client
from agentgym.render.config import ToolsStyle
from agentgym.render.families import FORMATS
from agentgym.rollout.agent import Agent, Decision, MakeAgent
from agentgym.rollout.seeds import derive_seed
from agentgym.server_tokens import kept_token
from agentgym.spending import report_answer, report_unanswered
from agentgym.trainers.engines.openai.endpoint import COUNTS_MESSAGES, KEY_VARIABLE, Endpoint
from agentgym.trainers.engines.openai.escape import escaped_messages, escaped_tool
from agentgym.trainers.engines.openai.pace import Pace, is_lost, told_if_unanswered
from agentgym.trainers.engines.openai.refusals import (
    AS_TEXT,
    LIMIT,
    ContextFullError,
    ConversationRefusedError,
    EndpointBusyError,
    EndpointForbiddenError,
    NoJsonError,
    NotFoundError,
    RefusedParameterError,
    TextRefusedError,
    error_of,
    fault_of,
    kept_reason,
)
from agentgym.trainers.engines.openai.text_tools import TextTools
from agentgym.trainers.engines.openai.trained import as_trained
from agentgym.trainers.engines.openai.wire import (
    Said,
    WireConversation,
    WireMessage,
    cards_in,
    forms_of,
    read_answer,
    shown,
    with_short_texts,
)
from agentgym.types import Json, JsonSchema, Latency, Message, Observation, ToolSpec, Turn
from agentgym.visible_text import visible

_FIRST_WAIT_S, _TOLD_WAIT_S, _LONGEST_WAIT_S = 1.0, 8.0, 60.0
"""Seconds before the second try, those from which on a note is printed once, and the most."""
_NUM_SEED_BITS: Final = 31
"""Some servers keep seeds in 32 bits."""
_COMPLETIONS: Final = ("POST", "/chat/completions")


def _on_stderr(text: str) -> None:
    print(visible(text), file=sys.stderr)


class OpenAIClient:
    """A client of one endpoint, with retries.

    Args:
        endpoint: the address and the settings of requests.
        num_slots: number of concurrent requests.
        wait: the function that sleeps for some seconds.
        say: receives a note on each parameter that requests leave out because the model refuses it.
        key: key of requests; by default that of a server whose token is kept, or of the environment variable.

    A pickled client keeps its key, and has a pace of its own.

    Raises:
        EngineError: the endpoint is unreachable or busy after all tries, rejects the request, or its answer is invalid.
        ContextFullError: the conversation is too long for the model, or the endpoint refuses it for its texts.
        UsageError: the key, the model's name, the address or a setting is wrong, or the account has no credit.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        num_slots: int,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        say: Callable[[str], None] = _on_stderr,
        key: str = "",
    ) -> None:
        self._num_slots = num_slots
        self.endpoint, self._pace = endpoint, Pace(endpoint, num_slots)
        self._wait, self._say = wait, say
        self._limit_name = LIMIT
        self._refused: set[str] = set()
        self._accepted: set[object] = set()
        """Forms of requests that were answered, see :func:`forms_of`."""
        self._num_refusals = 0
        self._model = endpoint.model
        self._naming = asyncio.Lock()
        self._are_tools_checked = self._is_wait_told = self._is_refusal_told = False
        self._key = key = key or kept_token(endpoint.url) or os.environ.get(KEY_VARIABLE, "")
        self._http = limited_async_client(
            to=endpoint.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=num_slots),
            timeout=None,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return OpenAIClient, (self.endpoint, self._num_slots, asyncio.sleep, _on_stderr, self._key)

    async def complete(
        self,
        messages: Sequence[WireMessage],
        tools: Sequence[JsonSchema],
        sampling: SamplingParams,
        schema: JsonSchema | None = None,
    ) -> Said:
        """Request the next assistant message of a conversation.

        Args:
            schema: JSON schema of the message, if the server supports it.
        """
        body: dict[str, object] = {
            "model": await self._model_name(),
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed % 2**_NUM_SEED_BITS,
        }
        if schema is not None:
            form = {"name": "answer", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        choice = {"tool_choice": "none"} if self.endpoint.tools == "template" else {}  # calls are read here
        with_tools = body | {"tools": tools, **choice} if tools else body
        answer = await self._completed(with_tools, sampling.max_new_tokens)
        try:
            said = read_answer(answer, len(messages))
        except EngineError as error:
            raise EngineError(f"{self.endpoint.url}: {error}") from None
        if tools and said.usage and self.endpoint.check_tools and not self._are_tools_checked:
            self._are_tools_checked = True
            await self._check_that_tools_are_shown(body, said.usage.prompt_tokens)
        return said

    async def _completed(self, body: Mapping[str, object], max_new_tokens: int) -> Json:
        """Request a completion, without the parameters that the model refuses.

        Raises:
            UsageError: it refuses one that requests cannot leave out.
        """
        while True:
            sent = self._taken(body, max_new_tokens)
            try:
                answer = await self._ask(*_COMPLETIONS, sent)
                self._accepted |= forms_of(sent)
                return answer
            except RefusedParameterError as error:
                self._leave_out(error, sent)
            except (TextRefusedError, EndpointForbiddenError) as error:
                if not await self._refuses_texts(sent, isinstance(error, TextRefusedError)):
                    raise
                self._tell_of_refusal(error)
                raise ConversationRefusedError(str(error)) from None

    async def _refuses_texts(self, sent: Mapping[str, object], is_tried_again: bool) -> bool:
        """Return True if a refused request differs from accepted ones only by the length or content of its texts.

        Its form was accepted before; or, from the second refusal on, is accepted with short texts. The first refusal of
        a new form may be one lost answer.

        Args:
            is_tried_again: the episode is played again after this error.
        """
        if forms_of(sent) <= self._accepted:
            return True
        self._num_refusals += 1
        if self._num_refusals == 1 and is_tried_again:
            return False
        messages = [with_short_texts(message) for message in cast("Sequence[WireMessage]", sent["messages"])]
        try:
            await self._ask_once(*_COMPLETIONS, {**sent, "messages": messages})
        except (EngineError, UsageError, EndpointBusyError, RefusedParameterError):
            return False
        return True

    def _tell_of_refusal(self, error: Exception) -> None:
        if not self._is_refusal_told:
            self._is_refusal_told = True
            told = " ".join(str(error).split())
            self._say(
                "note: episodes end as truncated_tokens, without success, where the endpoint refuses their texts in "
                f"words that agentgym does not know: too long, or filtered ({told})"
            )

    def _taken(self, body: Mapping[str, object], max_new_tokens: int) -> dict[str, object]:
        """Return a request without the parameters that the model refused before."""
        return {name: value for name, value in body.items() if name not in self._refused} | {
            self._limit_name: max_new_tokens
        }

    def _leave_out(self, error: RefusedParameterError, sent: Mapping[str, object]) -> None:
        """Leave a refused parameter out of later requests, with a note."""
        name, url = error.name, self.endpoint.url
        if error.instead:
            self._limit_name = error.instead
        elif reason := kept_reason(name, sent[name]):
            raise UsageError(f"{url} refuses {name}={sent[name]}: {reason} ({error})")
        elif name not in self._refused:
            self._refused.add(name)
            self._say(f"note: {url} refuses the parameter {name}; requests leave it out from now on")

    async def _check_that_tools_are_shown(self, body: Mapping[str, object], num_prompt_tokens: int) -> None:
        """Check that the server shows the tools to the model: without them the prompt must be shorter.

        vLLM and others silently drop the tools if the model's chat template does not render any.
        """
        try:
            answer = await self._ask_once(*_COMPLETIONS, self._taken(body, 1))
            usage = read_answer(answer, 0).usage
        except (EngineError, UsageError, EndpointBusyError, RefusedParameterError):
            return  # some models refuse a limit this low; then nothing is known
        if usage and usage.prompt_tokens == num_prompt_tokens:
            raise UsageError(
                f"{self.endpoint.url} does not show the tools to the model: its prompt has {num_prompt_tokens} tokens "
                f"with and without them (its chat template may render none). {AS_TEXT}. {COUNTS_MESSAGES}"
            )

    async def check(self) -> None:
        """Check once that the endpoint knows the model, before work begins that would wait for it.

        A model that the endpoint does not list is asked for one token.

        Raises:
            UsageError: the endpoint does not answer, rejects the key, or does not know the model.
        """
        body = {"model": self._model, "messages": [{"role": "user", "content": "Hello"}], LIMIT: 1}
        try:
            if self._model not in await self._listed():
                await self._ask_once(*_COMPLETIONS, body)
        except NoJsonError as error:
            url = self.endpoint.url
            hint = "correct the address" if urlsplit(url).path else f"did you mean {url}/v1?"
            raise UsageError(f"{url} {error}; {hint}") from None
        except EndpointBusyError as error:
            if not error.is_answer:
                raise UsageError(
                    f"the endpoint {self.endpoint.url} cannot be reached ({error}); start its server, or correct the "
                    "address"
                ) from None
        except (EngineError, RefusedParameterError):
            pass  # somebody answers, if only that the model takes no such request

    async def _listed(self) -> list[str]:
        """Return the models that the endpoint lists; without a model's name, that of the only one becomes known."""
        try:
            names = self._read_cards(await self._ask_once("GET", "/models", None))
        except (EngineError, NotFoundError, NoJsonError):
            names = []
        return names if self._model else [await self._model_name()]

    def _read_cards(self, answer: Json) -> list[str]:
        """Return the names of listed models; ask the served one as it was trained, if its folder is on this machine."""
        cards = cards_in(answer)
        served = self._model or (next(iter(cards)) if len(cards) == 1 else "")
        self.endpoint, note = as_trained(self.endpoint, cards.get(served))
        if note:
            self.endpoint = replace(self.endpoint, follows_model=False)
            self._say(note)
        return list(cards)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _model_name(self) -> str:
        async with self._naming:
            if not self._model:
                try:
                    answer = await self._ask("GET", "/models", None)
                except NotFoundError as error:
                    raise UsageError(f"{error}; if the address is right, name the model by ?model=NAME") from None
                names = self._read_cards(answer)
                if len(names) != 1:
                    number, which = (len(names), f" ({shown(', '.join(names))})") if names else ("no", "")
                    raise UsageError(f"{self.endpoint.url} lists {number} models; name one by ?model=NAME{which}")
                self._model = names[0]
        return self._model

    async def _ask(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
        """Send a request and return the decoded answer; retry while the server is busy or unreachable."""
        wait_s, fault = 0.0, ""
        for number in range(self.endpoint.num_tries):
            if wait_s:
                await self._wait(wait_s)
            try:
                return await self._ask_once(method, path, body)
            except EndpointBusyError as error:
                fault = str(error)
                wait_s = min(max(_FIRST_WAIT_S * 2**number, error.wait_s), _LONGEST_WAIT_S)
                if wait_s >= _TOLD_WAIT_S and not self._is_wait_told:
                    self._is_wait_told = True
                    told = " ".join(fault.split())
                    self._say(f"note: requests to {self.endpoint.url} fail, and are repeated after a while ({told})")
        raise EngineError(f"{self.endpoint.url}{path} failed {self.endpoint.num_tries} times, at last: {fault}")

    async def _ask_once(self, method: str, path: str, body: Mapping[str, object] | None) -> Json:
        try:
            async with self._pace.slot(), asyncio.timeout(self.endpoint.timeout_s):
                with told_if_unanswered(self.endpoint.url, self._model, is_paid=body is not None):
                    response = await self._http.request(method, self.endpoint.url + path, json=body)
        except TimeoutError:
            raise EndpointBusyError(f"no answer within {self.endpoint.timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EndpointBusyError(str(error) or type(error).__name__) from None
        if body is not None and is_lost(response):
            report_unanswered(self.endpoint.url, self._model)
        answer = self._decoded(response) if response.is_success else None
        if answer is not None and body is not None:
            report_answer(self.endpoint.url, self._model, answer)  # it costs, even if it cannot be read
        fault = fault_of(answer) if response.is_success and body is not None else None
        if response.is_success and fault is None:
            return answer
        raise error_of(response, self.endpoint.url, self._model, body or {}, fault)

    def _decoded(self, response: httpx.Response) -> Json:
        try:
            answer: Json = read_json(response.content)
        except ValueError:
            raise NoJsonError(f"answered no JSON: {shown(response.text)}", is_answer=True) from None
        return answer


class OpenAIAgent:
    """An agent for one episode of a policy behind an endpoint. Each request contains the whole conversation.

    ``generate_s`` of a decision is the time until the answer, including the wait for a busy server.

    Args:
        example: messages of a worked example at the beginning of the conversation; only with ``tools=text``.
    """

    def __init__(self, client: OpenAIClient, sampling: SamplingParams, seed: int, example: Observation = ()) -> None:
        self._client, self._sampling, self._seed, self._example = client, sampling, seed, example
        self._num_decisions = 0

    def begin(self, observation: Observation, tools: Sequence[ToolSpec]) -> None:
        endpoint, specs = self._client.endpoint, [escaped_tool(tool) for tool in tools]
        is_read_here, is_told = endpoint.tools != "server", endpoint.tools == "text"
        keeps_results = is_read_here and endpoint.results == "tool"
        style: ToolsStyle = "compact" if endpoint.tools_style == "compact" else "schema"
        self._in_text: TextTools | None = None
        if is_read_here:
            self._in_text = TextTools(FORMATS[endpoint.format], specs, style, is_told, keeps_results)
        opening = escaped_messages(observation)
        if self._in_text is not None:
            opening = self._in_text.told(opening)
            if self._example and tools and is_told:  # after the system message, which tells of the tools
                opening = (opening[0], *self._in_text.shown(escaped_messages(self._example)), *opening[1:])
        self._conversation = WireConversation(opening, keeps_results=keeps_results)
        self._tools = [] if is_told else [tool.as_function() for tool in specs]

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
        except ContextFullError as error:
            if not self._num_decisions or isinstance(error, ConversationRefusedError):  # whose words are recorded
                raise PromptTooLongError(str(error)) from None
            return None
        self._num_decisions += 1
        self._conversation.add_action(said.wire)
        turn = Turn(
            action=self._in_text.read(said.action) if self._in_text else said.action,
            completion=said.completion,
            usage=said.usage,
            latency=Latency(generate_s=time.perf_counter() - started, wait_s=said.completion.queued_s),
        )
        return Decision(turn)

    def observe(self, replies: Observation, played: Message | None = None) -> None:
        text, said = self._in_text, escaped_messages(replies)
        if played is not None:
            self._conversation.replace_action(text.written(played) if text else played)
        self._conversation.add_replies(text.replied(said) if text else said)

    async def end(self) -> None:
        pass


def endpoint_agents(client: OpenAIClient, sampling: SamplingParams, example: Observation = ()) -> MakeAgent:
    """Return a factory of agents for an endpoint, with a worked example if one is given."""

    def make_agent(env: Env, seed: int) -> Agent:
        return OpenAIAgent(client, sampling, seed, example)

    return make_agent
