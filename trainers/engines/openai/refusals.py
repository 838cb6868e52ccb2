"""Errors of an endpoint, read from the status and text of an answer that is no completion."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx

from agentgym.canonical import is_whole
from agentgym.errors import EngineError, UsageError
from agentgym.trainers.engines.openai.endpoint import KEY_VARIABLE
from agentgym.trainers.engines.openai.wire import choice_of, shown
from agentgym.types import Json

LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
AS_TEXT: Final = "Describe them in the first message: add tools=text to the address, as in openai:URL?tools=text"
_NO_KEY, _FORBIDDEN = 401, 403
_BAD_REQUEST, _NO_MONEY, _NOT_FOUND, _TIMEOUT, _TOO_MANY, _SERVER_ERROR = 400, 402, 404, 408, 429, 500
_NO_TOOLS: Final = ("--enable-auto-tool-choice", "does not support tools", "tools param requires --jinja")
"""Texts in the errors of vLLM, Ollama and llama.cpp for requests with tools that the server does not support."""
_TOO_LONG: Final = (
    "context_length_exceeded", "maximum context length", "maximum model length", "model's context length",
    "exceed_context_size_error", "exceeds the available context size", "prompt is too long", "exceed context limit",
    "exceeds the maximum number of tokens", "input is too long", "maximum prompt length",
    "context window", "context size has been exceeded", "exceeded model token limit", "when context the overflows",
    "exceeds the maximum allowed length", "`inputs` tokens + `max_new_tokens` must be",
)  # fmt: skip
"""Texts in the errors of OpenAI, vLLM, SGLang, llama.cpp, Anthropic, Gemini, Bedrock, xAI, Moonshot, LM Studio and TGI
for a conversation that no longer fits the model, in lower case. :class:`TextRefusedError` covers all other words."""
_NO_CREDIT: Final = (
    "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "credit balance is too low",
    "insufficient balance", "insufficient credits", "insufficient_user_quota",
)  # fmt: skip
"""Texts in the errors of OpenAI, Anthropic, DeepSeek, OpenRouter and One API for an account without credit, in lower
case. Gemini's "exceeded your current quota, please check your plan and billing details" is a limit per minute."""
_OPTIONAL: Final = ("seed", "response_format", "top_p", "temperature", LIMIT, NEW_LIMIT)
"""Parameters that models refuse, those that are missed least first: some take a temperature or ``top_p``, not both."""
_FAULTS: Final = ("error", "abort", "aborted", "cancelled", "canceled")
"""Finish reasons that are the server's failure, so the completion says nothing about the policy."""
_REFUSES: Final = "support|unknown|unrecogni[sz]ed|unexpected|permitted|allowed|deprecated|both be specified"
_NEAR: Final = 80
"""Most characters between a parameter's name and the words that refuse it, in one sentence."""


class ContextFullError(EngineError):
    """The conversation no longer fits the model's context, which ends the episode but is not a failure."""


class ConversationRefusedError(ContextFullError):
    """The server accepts such requests but not these texts: they are too long, or a filter refuses them."""


class TextRefusedError(EngineError):
    """The server refuses a request, and its words name no cause: a conversation too long, a filter, or a fault.

    The client finds out by the requests that the server accepts.
    """


class EndpointForbiddenError(UsageError):
    """The server forbids a request: the key is at fault, or a filter that answers with the same status."""


class NotFoundError(UsageError):
    """The endpoint does not know the model or the address."""


class EndpointBusyError(Exception):
    """The server is temporarily unavailable."""

    def __init__(self, fault: str, wait_s: float = 0.0, *, is_answer: bool = False) -> None:
        super().__init__(fault)
        self.wait_s, self.is_answer = wait_s, is_answer


class NoJsonError(EndpointBusyError):
    """The answer is a web page or cut off: a proxy in between is at fault, or the address."""


class RefusedParameterError(Exception):
    """The model takes no such parameter, or not with this value; ``instead`` is the name that it takes, if one is."""

    def __init__(self, name: str, fault: str, instead: str = "") -> None:
        super().__init__(fault)
        self.name, self.instead = name, instead


def fault_of(answer: Any) -> Json:
    """Return the failure that an answer of status 200 reports beside its completion or in place of one; None if none.

    Example:
        >>> fault_of({"error": {"code": 502}}), fault_of({"choices": []})
        ({'code': 502}, "it answered no completion: {'choices': []}")
    """
    try:
        if fault := answer.get("error"):
            return cast("Json", fault)
        choice = choice_of(answer)
        end = choice.get("finish_reason")
        is_given_up = isinstance(end, str) and end.lower() in _FAULTS
        given_up = f"its completion failed: finish_reason {end}" if is_given_up else None
        _ = choice["message"]
        return cast("Json", choice.get("error")) or given_up
    except (KeyError, IndexError, TypeError, AttributeError):
        return f"it answered no completion: {shown(answer)}"


def error_of(
    response: httpx.Response, url: str, model: str, body: Mapping[str, object], told: Json = None
) -> Exception:
    """Return the error for an answer that is no success.

    Args:
        url: the endpoint's address.
        body: the request.
        told: the failure that an answer of status 200 reports; its ``code``, if it has one, counts as the status.
    """
    code, text = (response.status_code, response.text) if told is None else (_code_of(told), json.dumps(told))
    words = text.lower()
    fault = f"status {response.status_code}: {shown(text)}"
    if response.has_redirect_location:
        to = str(response.url.join(response.headers["location"]))
        to = to.removesuffix("/chat/completions").removesuffix("/models")
        return UsageError(f"{url} redirects requests to {to}, and agentgym follows none; correct the address")
    if any(said in words for said in _TOO_LONG) and code >= _BAD_REQUEST:
        return ContextFullError(f"{url}: {fault}")
    if any(said in text for said in _NO_TOOLS):
        return UsageError(f"{url} takes no tools as it was started ({fault}). {AS_TEXT}")
    if code == _NO_MONEY or (code < _SERVER_ERROR and any(said in words for said in _NO_CREDIT)):
        return UsageError(
            f"{url} has no credit left for this key; top up the account, then go on with --resume RUN_DIR ({fault})"
        )
    if code >= _SERVER_ERROR or code in (_TOO_MANY, _TIMEOUT):
        return EndpointBusyError(fault, _asked_wait_s(response), is_answer=True)
    if code in (_NO_KEY, _FORBIDDEN, _NOT_FOUND):
        return _access_error(code, url, model, fault)
    if code >= _BAD_REQUEST:
        return _request_error(url, text, fault, body)
    return EngineError(f"{url} refused the request: {fault}")


def _access_error(code: int, url: str, model: str, fault: str) -> UsageError:
    """Return the error for a key, a model or an address that the server does not know."""
    if code != _NOT_FOUND:
        kind = UsageError if code == _NO_KEY else EndpointForbiddenError
        return kind(f"{url} refuses the key; set {KEY_VARIABLE} ({fault})")
    hint = "" if urlsplit(url).path else f"; did you mean {url}/v1?"
    what = f"no model {model!r}, or no such address" if model else "no such address"
    return NotFoundError(f"{url} knows {what} ({fault}){hint}")


def _code_of(told: Json) -> int:
    """Return the status that an error object names, else that of a server's failure, after which requests are repeated.

    Example:
        >>> _code_of({"code": 401}), _code_of({"code": "rate_limit"}), _code_of("lost")
        (401, 500, 500)
    """
    code = told.get("code") if isinstance(told, Mapping) else None
    return code if is_whole(code) and code >= _BAD_REQUEST else _SERVER_ERROR


def _request_error(url: str, text: str, fault: str, body: Mapping[str, object]) -> Exception:
    """Return the error for a request that the server calls wrong: a parameter, or something else."""
    if LIMIT in body and NEW_LIMIT in text:  # newer models of OpenAI's call it so
        return RefusedParameterError(LIMIT, fault, instead=NEW_LIMIT)
    if name := _refused_name(text, body):
        return RefusedParameterError(name, fault)
    return TextRefusedError(f"{url} refused the request: {fault}")


def _refused_name(text: str, body: Mapping[str, object]) -> str:
    """Return the optional parameter of a request that an error refuses; empty if it names none.

    OpenAI names it in ``param``, Mistral and other servers built on pydantic in ``loc``, most others in a sentence.

    Example:
        >>> _refused_name('{"error": {"message": "Unsupported value.", "param": "temperature"}}', {"temperature": 0.2})
        'temperature'
        >>> _refused_name("`temperature` and `top_p` cannot both be specified", {"temperature": 0.2, "top_p": 1.0})
        'top_p'
        >>> _refused_name("the seed of an apple is unexpectedly small: unknown", {"top_p": 1.0})
        ''
    """
    text = text.replace("\\", "")  # an error within an error, as proxies repeat it
    names = [name for name in _OPTIONAL if name in body]
    named = [name for name in names if re.search(rf'"param": *"{name}"|"loc": *\[ *"body", *"{name}" *\]', text)]
    gap, refuses = f"[^.]{{0,{_NEAR}}}", f"(?:{_REFUSES})"
    named += [name for name in names if re.search(rf"(?i){refuses}{gap}\b{name}\b|\b{name}\b{gap}{refuses}", text)]
    return next(iter(named), "")


def kept_reason(name: str, value: object) -> str:
    """Return what to do about a refused parameter that requests cannot leave out; empty if they can.

    They can leave out a seed, the form of an answer, and a value of 1, which is the servers' default.

    Example:
        >>> kept_reason("seed", 7), kept_reason("temperature", 1.0)
        ('', '')
        >>> kept_reason("temperature", 0.2)
        'set temperature to 1, which requests can leave out'
    """
    if name in (LIMIT, NEW_LIMIT):
        return "change the limit of new tokens (--max-new-tokens)"
    is_default = name in ("seed", "response_format") or value == 1.0
    return "" if is_default else f"set {name} to 1, which requests can leave out"


def _asked_wait_s(response: httpx.Response) -> float:
    """Return the seconds that a server asks to wait, by ``retry-after-ms`` or ``Retry-After``; 0 if it names none.

    RFC 9110 allows seconds and a date, which is compared with the server's own clock if the response tells it.

    Example:
        >>> clock = {"date": "Fri, 02 Jan 2026 10:00:00 GMT"}
        >>> _asked_wait_s(httpx.Response(429, headers={"retry-after": "Fri, 02 Jan 2026 10:00:45 GMT", **clock}))
        45.0
        >>> _asked_wait_s(httpx.Response(429, headers={"retry-after-ms": "2500", "retry-after": "3"}))
        2.5
    """
    headers = response.headers
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) / unit)
        except ValueError:
            continue
    until = _seconds_of(headers.get("retry-after", ""))
    now = _seconds_of(headers.get("date", ""))
    return 0.0 if until is None else max(0.0, until - (time.time() if now is None else now))


def _seconds_of(date: str) -> float | None:
    """Return an HTTP date in seconds since 1970; None if it is none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
