"""An episode as text for a model to read, and the model's answer about it.

Each message of the episode is JSON on its own line, so a message cannot imitate another one. An answer counts only if
all of it is JSON, so text of the episode that a model repeats is not taken for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from agentgym.canonical import read_json
from agentgym.types import Message, Observation, ToolCall, Trajectory, Turn


def transcript(trajectory: Trajectory, max_chars: int) -> str:
    """Return an episode as lines of JSON, without the agent's thinking, and how it ended.

    If the episode is too long, turns in the middle are left out, and a line gives their number.

    Example:
        >>> from agentgym.types import Status, Task
        >>> task = Task(id="t", split="train", seed=0)
        >>> told = (Message("user", "Find it."),)
        >>> made = Trajectory(task=task, env_id="x", status=Status.COMPLETED, segments=(), seed=0, observation=told)
        >>> print(transcript(made, 1000))
        {"environment": "Find it."}
        {"end": "completed"}
    """
    end = _line(end=str(trajectory.status))
    return f"{transcript_so_far(trajectory.observation, trajectory.turns, max_chars - len(end))}\n{end}"


def transcript_so_far(observation: Observation, taken: Sequence[Turn], max_chars: int) -> str:
    """Return the beginning of an episode as lines of JSON, as :func:`transcript` does."""
    longest = max_chars // 8
    first = [_line(environment=_cut(message.text, longest)) for message in observation]
    turns = [[*_lines_of(turn, at, longest)] for at, turn in enumerate(taken, 1)]
    room = max_chars - sum(map(len, first))
    sizes = [sum(map(len, lines)) for lines in turns]
    num_left_out = 0
    while len(turns) > 1 and sum(sizes) > room:  # drop the middle first, since the goal and the end matter most
        middle = len(turns) // 2
        num_left_out += 1
        del turns[middle], sizes[middle]
    if num_left_out:
        turns.insert((len(turns) + 1) // 2, [_line(left_out=f"{num_left_out} turns")])
    return "\n".join([*first, *(line for lines in turns for line in lines)])


def read_answer_object(text: str) -> Mapping[str, object]:
    """Return the JSON object in an answer, which may follow thinking and may be inside a code fence.

    Raises:
        ValueError: the answer is not one JSON object.

    Example:
        >>> read_answer_object('<think>Well.</think>```json\\n{"turn": 3}\\n```')
        {'turn': 3}
    """
    said = text.rpartition("</think>")[2].strip()
    if said.startswith("```") and said.endswith("```"):
        said = said.strip("`").removeprefix("json").strip()
    try:
        answer = read_json(said)
    except ValueError:
        answer = None
    if not isinstance(answer, Mapping):
        raise ValueError("the answer is not one JSON object")
    return answer


def _lines_of(turn: Turn, number: int, longest: int) -> Iterator[str]:
    calls = [
        {call.name: dict(call.arguments)} if isinstance(call, ToolCall) else {"unreadable": call.text}
        for call in turn.action.calls
    ]
    called = {"calls": _cut(json.dumps(calls, ensure_ascii=False), longest)} if calls else {}
    yield _line(turn=number, agent=_cut(_said(turn.action), longest), **called)
    for reply in turn.replies:
        yield _line(turn=number, environment=_cut(reply.text, longest))


def _said(action: Message) -> str:
    return action.text if action.answer is not None or not action.thinking else action.text.rpartition("</think>")[2]


def _line(**facts: object) -> str:
    return json.dumps(facts, ensure_ascii=False)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"
