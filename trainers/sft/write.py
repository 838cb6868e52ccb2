"""Conversion of conversations into a model's tokens, with the same session code as rollouts.

The token ids therefore equal those of a rollout with the same messages: prompts are rendered in the same way, and a new
segment begins where the chat template changes earlier messages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from agentgym.errors import PromptTooLongError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import DemonstrationAgent
from agentgym.rollout.context import ContextConfig, Room, open_context
from agentgym.rollout.loop import as_segments
from agentgym.trainers.sft.conversation import Conversation
from agentgym.types import Call, Message, Status, Task, ToolCall, ToolSpec, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A converter of conversations into the token ids that a rollout of this model would have."""

    renderer: ChatRenderer
    context: ContextConfig
    max_context_tokens: int
    max_new_tokens: int
    """Largest length of the policy's turns, which determines when a context is full."""
    max_turns: int | None
    """The environment's limit of turns, for contexts that show how many are left."""
    lost: Counter[str] = field(default_factory=Counter)
    """Number of messages by the part that they lost, because the model's format cannot represent it."""

    async def write(self, conversation: Conversation) -> Trajectory | None:
        """Convert a conversation into an episode with token ids; None if it is longer than ``max_context_tokens``.

        Raises:
            UsageError: the model's format cannot represent a call, or its chat template rejects the messages.
        """
        try:
            while True:
                try:
                    turns = await self._turns(conversation)
                    break
                except _TextInTheWayError as found:
                    conversation = _without_text(conversation, found.at)
                    self.lost["text"] += 1
        except PromptTooLongError:
            return None
        except UsageError as error:
            raise UsageError(f"{conversation.where}: {error}") from error
        if turns is None:
            return None
        return Trajectory(
            task=Task(id=conversation.where, split="demonstrations", seed=0),
            env_id="",
            status=Status.COMPLETED,
            segments=as_segments(turns),
            seed=0,
            observation=conversation.first,
        )

    def holds(self, trajectory: Trajectory, tools: tuple[ToolSpec, ...]) -> bool:
        """Return True if the recorded token ids of an episode are those of a rollout of this model.

        The episode's messages are rendered again. Every prompt must equal the recorded ids, and every completion must
        decode to the recorded text. Then tokenizer, chat template and context are those of the record.
        """
        room = Room(
            window=self.context.window(self.max_context_tokens),
            completion=self.max_new_tokens,
            max_turns=self.max_turns,
        )
        context = open_context(self.context, self.renderer, tools, trajectory.observation, room)
        for segment in trajectory.segments:
            if segment.agent:  # the record lacks the texts that a sub-agent was given
                continue
            for at, turn in enumerate(segment.turns):
                is_summary = turn.kind == "summary"
                is_same = (
                    turn.completion.token_ids
                    and (context.added_ids, context.begins_segment) == (turn.prompt_ids, at == 0)
                    and context.is_summarising == is_summary
                    and len(turn.completion.token_ids) <= context.num_free_tokens
                    and context.add_completion(turn.completion).content == turn.action.content
                )
                if not is_same:
                    return False
                if not is_summary:
                    context.add_replies(turn.replies, turn.played)
        return True

    async def _turns(self, conversation: Conversation) -> list[tuple[Turn, bool]] | None:
        said: list[Message] = []
        agent = DemonstrationAgent(
            lambda _: said[-1],
            self.renderer,
            self.max_context_tokens,
            self.max_new_tokens,
            self.context,
            self.max_turns,
        )
        turns: list[tuple[Turn, bool]] = []
        agent.begin(conversation.first, conversation.tools)
        for at, exchange in enumerate(conversation.exchanges):
            said.append(exchange.said)
            is_summary = True
            while is_summary:  # a full context asks for a summary before it takes the next action
                decision = await agent.decide()
                if decision is None:
                    return None
                turns.append((decision.as_turn(len(turns), ""), decision.begins_segment))
                is_summary = decision.is_summary
            turn, begins_segment = turns[-1]
            self._check(turn.action, exchange.said, at, has_tools=bool(conversation.tools))
            turns[-1] = replace(turn, replies=exchange.replies, played=exchange.played), begins_segment
            if at + 1 < len(conversation.exchanges):
                agent.observe(exchange.replies, exchange.played)
        return turns

    def _check(self, written: Message, wanted: Message, at: int, *, has_tools: bool) -> None:
        """Raise an error if the model's format changes calls, and count other changes."""
        calls = _facts(wanted.calls) if has_tools else ()
        has_text = bool(wanted.answer and wanted.answer.strip())
        if _facts(written.calls) != calls:
            if calls and has_text:
                raise _TextInTheWayError(at)
            if calls:
                raise UsageError(
                    f"the model's tool-call format {self.renderer.format.name!r} cannot write {_shown(calls)}, which "
                    f"it reads as {_shown(_facts(written.calls))}; choose another format by model.codec"
                )
            self.lost["form"] += 1
        if wanted.thinking.strip() and written.thinking != wanted.thinking.strip():
            self.lost["thinking"] += 1
        if wanted.answer is not None and wanted.answer.strip() not in written.text:
            self.lost["text"] += 1

    def losses(self) -> list[str]:
        """Return one sentence for each kind of change by the model's format."""
        said = {
            "thinking": "lost their thinking, for which the model's format has no place",
            "text": "lost the text beside their calls, for which the model's format has no place",
            "form": f"are text that the tool-call format {self.renderer.format.name!r} reads as calls",
        }
        return [f"{self.lost[kind]} messages {what}" for kind, what in said.items() if self.lost[kind]]


class _TextInTheWayError(Exception):
    """The error of a format that cannot parse an exchange's calls if they are next to its text."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at


def _without_text(conversation: Conversation, at: int) -> Conversation:
    exchanges = list(conversation.exchanges)
    exchanges[at] = replace(exchanges[at], said=replace(exchanges[at].said, content="", answer=""))
    return replace(conversation, exchanges=tuple(exchanges))


def _shown(calls: tuple[tuple[str, object], ...]) -> str:
    return ", ".join(f"{name}({arguments})" for name, arguments in calls) or "no call"


def _facts(calls: tuple[Call, ...]) -> tuple[tuple[str, object], ...]:
    return tuple((c.name, dict(c.arguments)) if isinstance(c, ToolCall) else ("malformed", c.text) for c in calls)
