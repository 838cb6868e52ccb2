"""A note on images that an environment shows and a model does not get."""

from __future__ import annotations

from collections.abc import Callable

from agentgym.types import ImagePart, Observation, Trajectory


class UnseenImages:
    """A watch over episodes that says once if a model was prompted without the images of its environment.

    Local models are prompted with token ids, which hold the text of messages alone.

    Args:
        say: receives the note.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_said = False

    def watch(self, trajectory: Trajectory) -> None:
        """Take an episode."""
        if not self._is_said and _hides_images(trajectory):
            self._is_said = True
            self._say(
                f"note: {trajectory.env_id} shows images, which the model does not get: its prompts hold text alone "
                "(docs/models.md)"
            )


def _hides_images(trajectory: Trajectory) -> bool:
    turns = [turn for turn in trajectory.turns if turn.prompt_ids]
    return bool(turns) and any(map(_shows_images, (trajectory.observation, *(turn.replies for turn in turns))))


def _shows_images(messages: Observation) -> bool:
    contents = (message.content for message in messages if not isinstance(message.content, str))
    return any(isinstance(part, ImagePart) for content in contents for part in content)
