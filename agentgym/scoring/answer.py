"""The final answer of an episode."""

from __future__ import annotations

from agentgym.types import ToolCall, Trajectory


def final_answer(trajectory: Trajectory) -> str:
    """Return the agent's last answer: the only text argument of its last call, else its last message without calls.

    A call with several arguments has no single text, so the message counts in that case, too. Empty if there is no
    text.

    Example:
        >>> from agentgym.types import Message, Segment, Status, Task, Turn
        >>> call = ToolCall("answer", {"text": "Paris"})
        >>> turns = (Turn(index=0, action=Message("assistant", "answer: Paris", (call,))),)
        >>> task = Task(id="q", split="test", seed=0)
        >>> final_answer(Trajectory(task=task, env_id="x", status=Status.COMPLETED, segments=(Segment(turns),), seed=0))
        'Paris'
    """
    own = [turn for segment in trajectory.segments if not segment.agent for turn in segment.turns if turn.kind == "act"]
    if not own:
        return ""
    action = own[-1].action
    calls = [call for call in action.calls if isinstance(call, ToolCall)]
    texts = [value for value in calls[-1].arguments.values() if isinstance(value, str)] if calls else []
    return texts[0] if len(texts) == 1 else action.text
