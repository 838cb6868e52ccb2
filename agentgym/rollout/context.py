"""Context policies: which history goes into the next prompt.

* ``full``: everything, in one segment as long as the chat template keeps the prefix.
* ``window``: the task, the last turns as text, and the current observation; every turn is a segment. GiGPO
  ("Group-in-Group Policy Optimization for LLM Agent Training") and HGPO use it.
* ``summarise``: everything, until the next turn would not fit. Then the policy writes a summary, in a turn that is
  trained like any other. The next segment begins with the task, the summary and the last observation. After SUPO
  ("Scaling LLM Multi-turn RL with End-to-end Summarization-based Context Management"), whose next segment begins with
  task and summary alone. Ours keeps the last observation verbatim, so that no observation is dropped.

Sampled tokens always stay unchanged in their segment. If the environment replaced an action by another, later prompts
show the other one, in a new segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from agentgym.env.actions import gold_action
from agentgym.env.env import Env
from agentgym.errors import ConfigError, UsageError, unknown_name
from agentgym.rollout.memory import (
    HINT,
    NOW,
    SUMMARY,
    TURNS_LEFT,
    TURNS_TAKEN,
    Exchange,
    remembered,
    summarised,
    with_turns_left,
)
from agentgym.rollout.session import Session
from agentgym.settings import Count, Natural, Settings, check_ranges, checked
from agentgym.types import Completion, MalformedCall, Message, Observation, ToolCall, ToolSpec

if TYPE_CHECKING:
    from agentgym.render.chat import ChatRenderer

CONTEXT_FILE = "agentgym_context.json"
"""File in a model's folder with the context policy of training, if it is not the full history."""
Act = Callable[[Env, Observation], Message]
"""A function that chooses an action from the environment and what it showed last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig(Settings):
    """The history that goes into the next prompt; the same in training, demonstrations and evaluation."""

    policy: Literal["full", "window", "summarise"] = "full"
    num_turns: Natural = 2
    """``window``: past turns in a prompt; fewer if they do not fit."""
    turns_left: bool = False
    """Add the number of turns left to every observation. The environment must have a turn limit."""
    example_turns: Natural = 0
    """``full``: begin prompts with so many turns of a worked example, played by the oracle on a training task (in
    training by random actions if there is none). A model that knows no tool-call format can imitate it, and can then be
    trained with RL only."""
    examples: tuple[Message, ...] = ()
    """Messages of the worked example, which are filled in when a run or an evaluation starts."""
    window_tokens: Natural = 0
    """Longest segment in tokens; 0 takes the engine's limit (``model.max_context_tokens``)."""
    summary_tokens: Count = 128
    """``summarise``: longest summary in tokens. Every segment reserves space for it."""
    max_summaries: Natural = 7
    """``summarise``: summaries per episode (SUPO's S). After the last one a full window ends the episode."""
    instruction: str = "Your context is full. Summarise what you need to go on with the task."
    """``summarise``: the message that asks for a summary."""

    def __post_init__(self) -> None:
        check_ranges(self, "context.")
        if self.example_turns and self.policy != "full":
            raise ConfigError("context.example_turns needs context.policy=full")
        if not self.instruction.strip():
            raise ConfigError("context.instruction must say something")

    def changed(self, values: Mapping[str, object]) -> ContextConfig:
        """Return a copy with values replaced, by name.

        Raises:
            ConfigError: a name is unknown or a value invalid.

        Example:
            >>> ContextConfig().changed({"policy": "window", "num_turns": 4}).num_turns
            4
        """
        if unknown := sorted(set(values) - set(asdict(self))):
            raise unknown_name("key", f"context.{unknown[0]}", [f"context.{name}" for name in asdict(self)])
        return checked(ContextConfig, asdict(self) | dict(values), "context")

    def with_example(self, env: Env, act: Act | None = None) -> ContextConfig:
        """Return a copy that holds the messages of the worked example, if one is to be shown.

        Args:
            act: as in :func:`worked_example`.

        Raises:
            UsageError: the environment has no oracle and ``act`` is None, or its episodes are too short.
        """
        if not self.example_turns or self.examples:
            return self
        return replace(self, examples=worked_example(env, self.example_turns, act))

    def window(self, max_context_tokens: int) -> int:
        """Return the longest segment on an engine with this limit."""
        return min(self.window_tokens or max_context_tokens, max_context_tokens)

    def check_room(self, max_context_tokens: int, max_new_tokens: int) -> None:
        """Raise an error for a window without room for prompts.

        Raises:
            ConfigError: there is no room; the message gives the numbers.
        """
        window = self.window(max_context_tokens)
        if self.policy == "summarise" and self.summary_tokens + max_new_tokens >= window:
            raise ConfigError(
                f"a turn of {max_new_tokens} tokens (sampling.max_new_tokens) and a summary of {self.summary_tokens} "
                f"(context.summary_tokens) leave nothing of a window of {window}: lower them, or "
                "raise context.window_tokens and model.max_context_tokens"
            )

    @property
    def phrases(self) -> tuple[str, ...]:
        """Texts that prompts contain in addition to the environment's; a tokenizer trained from scratch must cover
        them, too.
        """
        windowed = (TURNS_TAKEN.format(number=2) + "\n", NOW + "\n") if self.policy == "window" else ()
        summary = (SUMMARY + "\n", NOW + "\n", self.instruction) if self.policy == "summarise" else ()
        return (*windowed, *summary, *((TURNS_LEFT.format(number=3),) if self.turns_left else ()))


FULL = ContextConfig()


def check_turns_left(config: ContextConfig, env: Env) -> None:
    """Raise an error if the number of turns left is requested and the environment has no turn limit.

    Raises:
        ConfigError: there is no turn limit; the message names the environment.
    """
    if config.turns_left and env.max_turns is None:
        raise ConfigError(f"context.turns_left: {env.env_id} has no turn limit; set env.kwargs.max_turns=N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The limits of an episode's tokens and turns."""

    window: int
    """Most tokens of prompt and completion together."""
    completion: int
    """Longest action in tokens."""
    max_turns: int | None = None
    """The environment's turn limit."""


class Context:
    """The context of one episode: its prompts contain the whole history."""

    is_summarising = False
    """True if the next completion is a summary instead of an action."""

    def __init__(
        self, config: ContextConfig, renderer: ChatRenderer, tools: Sequence[ToolSpec], first: Observation, room: Room
    ) -> None:
        self._config, self._renderer, self._tools, self._room = config, renderer, tools, room
        self._first, self._now = first, first
        self.past: list[Exchange] = []
        """Finished turns, without summaries."""
        shown = (*(_as_said(message, renderer, tools) for message in config.examples), *self._noted(first))
        self._session = Session(renderer, tools, shown)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt of the next completion."""
        return self._session.prompt_ids

    @property
    def added_ids(self) -> tuple[int, ...]:
        """The part of :attr:`prompt_ids` that came after the last completion of the segment."""
        return self._session.added_ids

    @property
    def begins_segment(self) -> bool:
        """True if the next completion is the first of its segment."""
        return self._session.begins_segment

    @property
    def opens_thinking(self) -> bool:
        """True if the next completion begins inside thinking, which the prompt has opened."""
        return self._session.opens_thinking

    @property
    def num_free_tokens(self) -> int:
        """Free tokens in the window; below 1 the episode must end."""
        return self._room.window - self._session.num_tokens

    @property
    def max_new_tokens(self) -> int:
        """Most tokens of the next completion."""
        return min(self._room.completion, self.num_free_tokens)

    def add_completion(self, completion: Completion) -> Message:
        """Append sampled tokens, and return the message that they render."""
        message = self._session.add_completion(completion)
        self.past.append(Exchange(self._now, self._as_text(message)))
        return message

    def hinted(self, action: Message) -> tuple[str, tuple[int, ...]]:
        """Return a hint at an action, and :attr:`prompt_ids` with the hint at their end."""
        hint = self._as_text(action)
        return hint, self._session.hinted_ids(HINT.format(text=hint))

    def add_replies(self, replies: Observation, played: Message | None = None) -> None:
        """Append the answer to the last action, or to ``played`` if that replaced it."""
        if played is not None:
            self.past[-1] = replace(self.past[-1], action=self._as_text(played))
            self._session.replace_action(played)
        self._now = replies
        self._show(self._noted(replies))

    def _show(self, noted: Observation) -> None:
        """Build the next prompt."""
        self._session.add_replies(noted)

    def _noted(self, observation: Observation) -> Observation:
        limit = self._room.max_turns
        if not self._config.turns_left or limit is None:
            return observation
        return with_turns_left(observation, limit - len(self.past))

    def _as_text(self, action: Message) -> str:
        """Return an action as later prompts show it: its calls, malformed ones as sampled, or its text after thinking.

        Every call is shown, since each has a result.
        """
        calls = [call for call in action.calls if not isinstance(call, MalformedCall)]
        if not action.calls:
            return _said(action)
        if len(calls) == len(action.calls):
            return self._renderer.format.format(calls, self._tools)
        return "\n".join(
            call.text if isinstance(call, MalformedCall) else self._renderer.format.format([call], self._tools)
            for call in action.calls
        )


class WindowContext(Context):
    """A context with the last turns as text, whose prompts are built from scratch."""

    def _show(self, noted: Observation) -> None:
        num_turns = min(self._config.num_turns, len(self.past))
        self._session.begin_segment(remembered(self._first, self.past, num_turns, noted))
        while num_turns and self.num_free_tokens < self._room.completion:
            num_turns -= 1
            self._session.begin_segment(remembered(self._first, self.past, num_turns, noted))


class SummaryContext(Context):
    """A context with the whole history until the window is full, and then with a summary.

    Before every action it reserves space for the action, the request for a summary, and the summary. A summary is
    therefore always possible, even after a long reply.
    """

    def __init__(
        self, config: ContextConfig, renderer: ChatRenderer, tools: Sequence[ToolSpec], first: Observation, room: Room
    ) -> None:
        super().__init__(config, renderer, tools, first, room)
        self._question = (Message("user", config.instruction),)
        self._num_summaries = 0
        self._most_calls = 1

    @property
    def max_new_tokens(self) -> int:
        longest = self._config.summary_tokens if self.is_summarising else self._room.completion
        return min(longest, self.num_free_tokens)

    def add_completion(self, completion: Completion) -> Message:
        if not self.is_summarising:
            message = super().add_completion(completion)
            self._most_calls = max(self._most_calls, len(message.calls))
            return message
        summary = replace(self._session.add_completion(completion), calls=())
        self.is_summarising = False
        self._num_summaries += 1
        self._session.begin_segment(summarised(self._first, _said(summary), self._noted(self._now)))
        return summary

    def _show(self, noted: Observation) -> None:
        is_last = self._num_summaries == self._config.max_summaries
        needed = self._session.num_tokens_after(noted) + self._room.completion + self._reserve
        self.is_summarising = not is_last and needed > self._room.window
        self._session.add_replies(self._question if self.is_summarising else noted)

    @property
    def _reserve(self) -> int:
        """Tokens of the request for a summary and of the summary.

        Some templates need a result for each call, so the request is longest after as many calls as a turn had so far.
        """
        name = max((tool.name for tool in self._tools), key=len, default="")
        calls = (ToolCall(name),) * self._most_calls if name else ()
        after = (Message("assistant", "?"), Message("assistant", calls=calls))
        suffixes = (
            self._renderer.suffix_ids((Message("user", "?"), said), self._question, self._tools, None) for said in after
        )
        return max(len(ids or ()) for ids in suffixes) + self._config.summary_tokens


_CONTEXTS = {"full": Context, "window": WindowContext, "summarise": SummaryContext}


def open_context(
    config: ContextConfig, renderer: ChatRenderer, tools: Sequence[ToolSpec], first: Observation, room: Room
) -> Context:
    """Return the context of an episode that begins with ``first``."""
    return _CONTEXTS[config.policy](config, renderer, tools, first, room)


def _as_said(message: Message, renderer: ChatRenderer, tools: Sequence[ToolSpec]) -> Message:
    """Return a message of an example, with an action in the model's own format."""
    if message.role != "assistant":
        return message
    return renderer.read_text(renderer.action_text(message, tools, is_open=False), tools, is_open=False)


def _said(message: Message) -> str:
    """Return the text of a message after its thinking."""
    return message.text.rpartition("</think>")[2].strip()


# -------- A worked example in the prompt: the first turns of an oracle's episode, for models without a tool-call format

_MAX_TASKS = 50


def worked_example(env: Env, num_turns: int, act: Act | None = None) -> tuple[Message, ...]:
    """Play the first training task that takes at least ``num_turns`` turns, and return the messages.

    The result ends with an action, so that a task can follow.

    Args:
        act: chooses the actions; None: the environment's oracle does.

    Raises:
        UsageError: the environment has no oracle and ``act`` is None, or its episodes are shorter.
    """
    choose = act or partial(_gold, f"context.example_turns={num_turns}")
    whose = "" if act else " of the oracle"
    for task in env.tasks("train")[:_MAX_TASKS]:
        seen, is_over = env.reset(options={"task": task})[0], False
        messages = [*seen]
        for turn in range(num_turns):
            if is_over:
                break
            action = choose(env, seen)
            seen, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
            messages += [action, *(seen if turn + 1 < num_turns else ())]
            if turn + 1 == num_turns:
                return tuple(messages)
    raise UsageError(
        f"context.example_turns={num_turns}: no episode{whose} of {env.env_id} is so long, on {_MAX_TASKS} "
        "training tasks; lower it"
    )


def _gold(setting: str, env: Env, seen: Observation) -> Message:
    try:
        return gold_action(env)
    except UsageError as error:
        raise UsageError(
            f"{setting} shows what the oracle of {env.env_id} does, and it has none: write oracle(), or leave it out"
        ) from error
