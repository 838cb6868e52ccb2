"""The token side of one episode: an append-only buffer per segment.

Sampled ids go in as they were sampled, what the environment says goes in as the suffix it adds, and nothing that is in
the buffer ever changes. Where a template would change it, a new segment begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.render.chat import ChatRenderer
from agentgym.types import Completion, FinishReason, Message, Observation, ToolSpec


class Session:
    """One conversation as token ids.

    Example (``tokens`` of a segment after one turn)::

        first prompt | sampled completion | suffix that renders the replies
    """

    def __init__(self, renderer: ChatRenderer, tools: Sequence[ToolSpec], observation: Observation) -> None:
        self._renderer = renderer
        self._tools = tuple(tools)
        self._messages: list[Message] = list(observation)
        self._tokens: list[int] = list(renderer.prompt_ids(self._messages, self._tools))
        self._num_committed = 0
        self.num_segments = 1

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """All tokens of the current segment: the prompt of the next completion."""
        return tuple(self._tokens)

    @property
    def num_tokens(self) -> int:
        """Length of :attr:`prompt_ids`."""
        return len(self._tokens)

    @property
    def added_ids(self) -> tuple[int, ...]:
        """The part of :attr:`prompt_ids` that came after the last completion."""
        return tuple(self._tokens[self._num_committed :])

    def add_completion(self, completion: Completion) -> Message:
        """Append what was sampled, and read it."""
        self._tokens += completion.token_ids
        self._num_committed = len(self._tokens)
        message = self._renderer.read(completion.token_ids, self._tools)
        self._messages.append(message)
        self._turn_ended = (
            completion.finish_reason is FinishReason.STOP and completion.token_ids[-1] in self._renderer.turn_end_ids
        )
        return message

    def add_replies(self, replies: Observation) -> bool:
        """Append what the environment answered; True if that began a new segment."""
        self._messages += replies
        if self._renderer.keeps_prefix(self._messages, self._tools):
            self._tokens += self._renderer.suffix_ids(replies, turn_ended=self._turn_ended)
            return False
        self._tokens = list(self._renderer.prompt_ids(self._messages, self._tools))
        self._num_committed = 0
        self.num_segments += 1
        return True
