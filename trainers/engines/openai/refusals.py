"""Errors of an endpoint, read from the status and text of an answer that is no completion."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx

from agentgym.errors import EngineError, UsageError
from agentgym.trainers.engines.openai.endpoint import KEY_VARIABLE
from agentgym.trainers.engines.openai.wire import shown
from agentgym.types import Json

LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
AS_TEXT: Final = "Describe them in the first message: add tools=text to the address, as in openai:URL?tools=text"
_REFUSED_KEY: Final = (401, 403)
_BAD_REQUEST, _NO_MONEY, _NOT_FOUND, _TIMEOUT, _INVALID, _TOO_MANY, _SERVER_ERROR = 400, 402, 404, 408, 422, 429, 500
_NO_TOOLS: Final = ("--enable-auto-tool-choice", "does not support tools", "tools param requires --jinja")
"""Texts in the errors of vLLM, Ollama and llama.cpp for requests with tools that the server does not support."""
_TOO_LONG: Final = (
    "context_length_exceeded", "maximum context length", "maximum model length", "model's context length",
    "exceed_context_size_error", "exceeds the available context size", "prompt is too long", "exceed context limit",
    "exceeds the maximum number of tokens", "input is too long", "maximum prompt length",
    "context window",
)  # fmt: skip
"""Texts in the errors of OpenAI, vLLM, SGLang, llama.cpp, Anthropic, Gemini, Bedrock and xAI for a conversation that no
longer fits the model, in lower case."""
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


class NotFoundError(UsageError):
    """The endpoint does not know the model or the address."""


class BusyError(Exception):
    """The server is temporarily unavailable."""

    def __init__(self, fault: str, wait_s: float = 0.0, *, is_answer: bool = False) -> None:
        super().__init__(fault)
        self.wait_s, self.is_answer = wait_s, is_answer


class NoJsonError(BusyError):
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
        choice = answer["choices"][0]
        end = choice.get("finish_reason")
        is_given_up = isinstance(end, str) and end.lower() in _FAULTS
        given_up = f"its completion failed: finish_reason {end}" if is_given_up else None
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
    if any(said in text for said in _NO_TOOLS):
        return UsageError(f"{url} takes no tools as it was started ({fault}). {AS_TEXT}")
    if code == _NO_MONEY or (code < _SERVER_ERROR and any(said in words for said in _NO_CREDIT)):
        return UsageError(
            f"{url} has no credit left for this key; top up the account, then go on with --resume RUN_DIR ({fault})"
        )
    if code >= _SERVER_ERROR or code in (_TOO_MANY, _TIMEOUT):
        return BusyError(fault, _asked_wait_s(response), is_answer=True)
    if code in _REFUSED_KEY:
        return UsageError(f"{url} refuses the key; set {KEY_VARIABLE} ({fault})")
    if code == _NOT_FOUND:
        hint = "" if urlsplit(url).path else f"; did you mean {url}/v1?"
        what = f"no model {model!r}, or no such address" if model else "no such address"
        return NotFoundError(f"{url} knows {what} ({fault}){hint}")
    if code in (_BAD_REQUEST, _INVALID):
        return _request_error(url, text, fault, body)
    return EngineError(f"{url} refused the request: {fault}")


def _code_of(told: Json) -> int:
    """Return the status that an error object names, else that of a server's failure, after which requests are repeated.

    Example:
        >>> _code_of({"code": 401}), _code_of({"code": "rate_limit"}), _code_of("lost")
        (401, 500, 500)
    """
    code = told.get("code") if isinstance(told, Mapping) else None
    return code if isinstance(code, int) and code >= _BAD_REQUEST else _SERVER_ERROR


def _request_error(url: str, text: str, fault: str, body: Mapping[str, object]) -> Exception:
    """Return the error for a request that the server calls wrong: a full context, a parameter, or something else."""
    if any(said in text.lower() for said in _TOO_LONG):
        return ContextFullError(f"{url}: {fault}")
    if LIMIT in body and NEW_LIMIT in text:  # newer models of OpenAI's call it so
        return RefusedParameterError(LIMIT, fault, instead=NEW_LIMIT)
    if name := _refused_name(text, body):
        return RefusedParameterError(name, fault)
    return EngineError(f"{url} refused the request: {fault}")


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
    """Return the seconds of the server's ``Retry-After``; a date is ignored."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
