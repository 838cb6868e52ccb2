"""A user played by a language model on any server with OpenAI's Chat Completions API."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from agentgym.canonical import packaged, read_json
from agentgym.envs.domains.task import Scenario
from agentgym.envs.domains.users import OUT_OF_SCOPE, STOP, TRANSFER, spoken
from agentgym.errors import EnvError, EnvTimeoutError, UsageError
from agentgym.spending import report_answer, report_unanswered

if TYPE_CHECKING:
    import httpx

GREETING: Final = "Hello! How can I help you today?"
"""Message of the agent that precedes the user's first message."""
GUIDELINES: Final = {
    kind: text.format(stop=STOP, transfer=TRANSFER, out_of_scope=OUT_OF_SCOPE)
    for kind, text in packaged(__package__, "guidelines.toml").items()
}
"""Instructions of the model: of one that only talks, and of one with tools."""

_SERVER_ERROR = 500
_TOO_MANY = 429
_NUM_TRIES = 2
_OTHER_SEED: Final = 1_000_003
"""Distance of the seed with which an empty message is sampled again."""

Turns = tuple[tuple[str, str], ...]
"""Role and text of every message so far, from the model's point of view: the user is the ``assistant``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModel:
    """The model that plays the user, with its sampling settings.

    If the server needs a key, the environment variable ``api_key_variable`` holds it.
    """

    url: str
    """Base URL including ``/v1``, such as ``http://127.0.0.1:8000/v1``."""
    model: str
    temperature: float = 0.0
    max_tokens: int = 512
    timeout_s: float = 60.0
    api_key_variable: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")) or not self.model:
            raise UsageError(
                f"the user's model needs a url such as http://127.0.0.1:8000/v1 and a model's name; got {self.url!r} "
                f"and {self.model!r}"
            )
        if self.temperature < 0 or self.max_tokens < 1 or self.timeout_s <= 0:
            raise UsageError("the user's model needs a temperature of at least 0, max_tokens and timeout_s above 0")


class ModelUser:
    """A user played by a model, whose state is the conversation so far.

    If the model does not answer, that is an infrastructure failure, not a failure of the policy.

    Args:
        scenario: the user's identity and request.
        options: the model and its sampling settings.
        seed: seed of sampling; the n-th message of a conversation is sampled with ``seed + n``.
        http: client for the requests, which its owner closes.

    Raises:
        EnvError: raised by ``begin`` and ``reply`` if the server cannot be reached, rejects the request, or returns no
            text.
        EnvTimeoutError: the server does not answer in time.
    """

    is_blocking = True
    guidelines: ClassVar[str] = GUIDELINES["talks"]

    def __init__(self, scenario: Scenario, options: UserModel, seed: int, http: httpx.Client) -> None:
        self._options, self._seed, self._http = options, seed, http
        parts = {
            "Who you are": scenario.persona,
            "Why you write": scenario.reason_for_call,
            "What you know": scenario.known_info,
            "What you do not know": scenario.unknown_info,
            "How to behave": scenario.task_instructions,
        }
        told = "\n".join(f"{name}: {text}" for name, text in parts.items() if text)
        self._system = f"{self.guidelines}\n\n<scenario>\n{told}\n</scenario>"

    def begin(self) -> tuple[Turns, str]:
        """Return the first state and the user's first message."""
        return self.reply((), GREETING)

    def reply(self, state: Turns, heard: str) -> tuple[Turns, str]:
        """Return the next state and the user's answer to a message."""
        asked = (*state, ("user", heard))
        messages = [{"role": "system", "content": self._system}]
        messages += [{"role": role, "content": text} for role, text in asked]
        content = self._ask(messages, self._seed + len(state) // 2).get("content")
        said = spoken(content) if isinstance(content, str) else ""
        if not said:
            raise EnvError(f"the user's model {self._options.model} at {self._options.url} said nothing")
        return (*asked, ("assistant", said)), said

    def key(self, state: Turns) -> Any:
        """Return the conversation, which determines the user's next message."""
        return state

    def _ask(self, messages: Sequence[Mapping[str, Any]], seed: int, **more: object) -> Mapping[str, Any]:
        """Return the model's message. One that says and calls nothing is sampled once more, with another seed."""
        first = self._sampled(messages, seed, **more)
        is_empty = not first.get("tool_calls") and not spoken(str(first.get("content") or ""))
        return self._sampled(messages, seed + _OTHER_SEED, **more) if is_empty else first

    def _sampled(self, messages: Sequence[Mapping[str, Any]], seed: int, **more: object) -> Mapping[str, Any]:
        options = self._options
        body = {
            "model": options.model,
            "messages": messages,
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "seed": seed,
            **more,
        }
        answer = self._post(body)
        try:
            message: Mapping[str, Any] = answer["choices"][0]["message"]
            message.get("content")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise EnvError(f"the user's model at {options.url} answered {str(answer)[:200]!r}, no completion") from None
        return message

    def _post(self, body: Mapping[str, object]) -> Any:
        import httpx

        url, key = f"{self._options.url.rstrip('/')}/chat/completions", os.environ.get(self._options.api_key_variable)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        fault = ""
        for _ in range(_NUM_TRIES):
            try:
                response = self._http.post(url, json=body, headers=headers, timeout=self._options.timeout_s)
            except httpx.TimeoutException as error:
                report_unanswered(self._options.url.rstrip("/"), self._options.model)
                raise EnvTimeoutError(f"the user's model at {url} took over {self._options.timeout_s:g} s") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                fault = str(error) or type(error).__name__
                continue
            if response.is_success:
                try:
                    answer = read_json(response.content)
                    report_answer(self._options.url.rstrip("/"), self._options.model, answer)
                    return answer
                except ValueError as error:
                    raise EnvError(f"the user's model at {url} answered no JSON: {response.text[:200]!r}") from error
            fault = f"status {response.status_code}: {response.text[:200]!r}"
            if response.status_code < _SERVER_ERROR and response.status_code != _TOO_MANY:
                break
        raise EnvError(f"the user's model at {url} failed: {fault}")


def user_http(url: str) -> httpx.Client:
    """Make an HTTP client for the user's model at an address. The caller closes it."""
    from agentgym.http_limits import limited_client

    return limited_client(to=url)
