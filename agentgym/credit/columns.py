"""The credit table of recorded episodes, and the optional columns that episodes themselves record."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agentgym.canonical import canonical
from agentgym.credit.inputs import PER_TOKEN, PER_TRAJECTORY, codes_of
from agentgym.credit.table import Ints, TurnTable
from agentgym.errors import unknown_name
from agentgym.types import RewardRole, Segment, Status, ToolCall, Trajectory, TrajectoryGroup, Turn

ANSWER_TOOLS = ("answer", "submit", "submit_answer", "finish")
"""Names of tools that submit a final answer."""
ANSWER = re.compile(r"<answer>.*?</answer>", re.DOTALL)
CUT = (Status.TRUNCATED_TURNS, Status.TRUNCATED_TOKENS)


def turn_table(groups: Sequence[TrajectoryGroup], columns: Collection[str] = ()) -> TurnTable:
    """Build a credit table from the valid trajectories of groups; failed rollouts have no rows.

    In a game, the trajectories of each player form a separate group (:func:`player_groups`).

    Args:
        columns: names of optional columns to fill from the episodes, out of :data:`FROM_GROUPS`.
    """
    members = list(_members(groups))
    table = TurnTable.from_lists(
        rewards=[[turn.reward for turn in t.turns] for t in members],
        states=_states(members),
        is_valid=[[turn.is_valid for turn in t.turns] for t in members],
        group_of_trajectory=_group_codes(groups),
    )
    return table.with_columns(**recorded_columns(groups, columns)) if columns else table


def recorded_columns(groups: Sequence[TrajectoryGroup], names: Collection[str]) -> dict[str, Any]:
    """Return the named columns over the turns of valid trajectories, ready for ``TurnTable.with_columns``.

    Raises:
        UnknownNameError: episodes do not record a named column, so the caller must supply it.
    """
    result: dict[str, Any] = {}
    for name in names:
        if name == "part_values":
            result |= _parts(_turns(groups))
        elif name == "group_keys":
            result[name] = tuple(_key_of(groups[index], player) for index, player in player_groups(groups))
        elif name in PER_TURN:
            result[name] = [PER_TURN[name](turn) for turn in _turns(groups)]
        elif name in PER_EPISODE:
            result[name] = [value for t in _members(groups) for value in PER_EPISODE[name](t)]
        else:
            raise unknown_name("recorded column", name, FROM_GROUPS, "supply it with TurnTable.with_columns")
    if "final_anchor" in result:
        result["final_anchor"] = _final_anchors(groups)
    if "parent" in result:
        result["parent"] = _parents(groups)
    for name, code in (("action", codes_of), ("answer", _answer_codes), ("role", _numbered)):
        if name in result:
            result[name] = code(result[name])
    return result


def _group_codes(groups: Sequence[TrajectoryGroup]) -> list[int]:
    """Return the group of each valid trajectory in the credit table."""
    code = {key: number for number, key in enumerate(player_groups(groups))}
    return [code[index, t.player] for index, group in enumerate(groups) for t in group.valid]


def _states(members: Sequence[Trajectory]) -> list[list[object]]:
    """Return the state of each turn; a turn without a key is in a state of its own."""
    return [
        [turn.state_key if turn.state_key is not None else (member, n) for n, turn in enumerate(t.turns)]
        for member, t in enumerate(members)
    ]


def _final_anchors(groups: Sequence[TrajectoryGroup]) -> list[int]:
    """Return the code of each turn's final state in the codes of ``anchor``, -1 for a trajectory without a key."""
    members, codes = list(_members(groups)), _group_codes(groups)
    keys = [(group, state) for group, row in zip(codes, _states(members), strict=True) for state in row]
    ends = [(group, t.final_state_key) for group, t in zip(codes, members, strict=True)]
    known = codes_of([*keys, *ends])[len(keys) :].tolist()  # codes of turns come first, as in the table
    return [-1 if t.final_state_key is None else code for t, code in zip(members, known, strict=True) for _ in t.turns]


def player_groups(groups: Sequence[TrajectoryGroup]) -> list[tuple[int, int]]:
    """Return the groups of a credit table as (index of the recorded group, player), one for each player of a game.

    Players must not be compared with each other: in a zero-sum game their results cancel (composition rule 15).

    Example:
        >>> player_groups(())
        []
    """
    return [
        (index, player)
        for index, group in enumerate(groups)
        for player in sorted({trajectory.player for trajectory in group.valid} or {0})
    ]


def _key_of(group: TrajectoryGroup, player: int) -> str:
    """Return a name for the task that stays the same across batches; players after the first have a suffix."""
    return f"{group.task.id}:{group.task.content_hash}" + (f":{player}" if player else "")


def split_columns(columns: Mapping[str, Any], groups: Sequence[TrajectoryGroup]) -> list[dict[str, Any]]:
    """Split the columns of a batch, as :func:`compose.credit_groups` takes them, into plain lists for each group.

    Example:
        >>> split_columns({"entropy": []}, ())
        []
    """
    at = dict.fromkeys(columns, 0)
    pieces: list[dict[str, Any]] = []
    for group in groups:
        piece: dict[str, Any] = {}
        for name, column in columns.items():
            rows = column[at[name] : at[name] + _num_entries(name, group)]
            at[name] += len(rows)
            piece[name] = [np.asarray(row).tolist() for row in rows]
        pieces.append(piece)
    return pieces


def join_columns(pieces: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Join the columns of groups to those of a batch; the inverse of :func:`split_columns`.

    Columns that some groups lack are left out.
    """
    names = [name for name in (pieces[0] if pieces else ()) if all(name in piece for piece in pieces)]
    return {name: [row for piece in pieces for row in piece[name]] for name in names}


def _num_entries(name: str, group: TrajectoryGroup) -> int:
    if name in PER_TRAJECTORY:
        return len(group.valid)
    turns = [turn for trajectory in group.valid for turn in trajectory.turns]
    return sum(len(turn.completion.token_ids) for turn in turns) if name in PER_TOKEN else len(turns)


def _members(groups: Sequence[TrajectoryGroup]) -> Iterable[Trajectory]:
    return (trajectory for group in groups for trajectory in group.valid)


def _turns(groups: Sequence[TrajectoryGroup]) -> Iterable[Turn]:
    return (turn for trajectory in _members(groups) for turn in trajectory.turns)


def action_key(turn: Turn) -> str:
    """Return the parsed calls in canonical form, or the text of a turn without calls.

    The text around a call is ignored: two turns that make the same call count as the same action.
    """
    if not turn.action.calls:
        return turn.action.text
    return canonical([[c.name, dict(c.arguments)] if isinstance(c, ToolCall) else c.text for c in turn.action.calls])


def _answer(turn: Turn) -> str | None:
    """Return the turn's calls, or the last line of its text in lower case; None for a void or invalid turn."""
    if turn.is_void or not turn.is_valid:
        return None
    lines = [line.strip() for line in turn.action.text.splitlines() if line.strip()]
    return action_key(turn) if turn.action.calls else (lines[-1].casefold() if lines else None)


def _answer_counts(trajectory: Trajectory) -> list[int]:
    """Return the final answers in each turn: calls of an answer tool and texts in answer tags.

    If opening and closing answer tags of the episode do not match, nothing counts as an answer. If there is neither a
    call nor a tag, the text that ends a completed episode is the answer.
    """
    turns = trajectory.turns
    texts = "\n".join(turn.action.text for turn in turns)
    num_tagged = len(ANSWER.findall(texts))
    if texts.count("<answer>") != num_tagged or texts.count("</answer>") != num_tagged:
        return [0] * len(turns)
    counts = [
        len(ANSWER.findall(turn.action.text))
        + sum(isinstance(call, ToolCall) and call.name in ANSWER_TOOLS for call in turn.action.calls)
        for turn in turns
    ]
    ends_with_text = bool(turns) and trajectory.status is Status.COMPLETED and not turns[-1].action.calls
    if ends_with_text and not any(counts) and not turns[-1].is_void:
        counts[-1] = 1
    return counts


def _answer_codes(answers: Sequence[str | None]) -> Ints:
    """Return a code for each answer, -1 for none."""
    missing = np.array([answer is None for answer in answers], dtype=np.bool_)
    return np.where(missing, -1, codes_of([answer or "" for answer in answers]))


def _numbered(roles: Sequence[tuple[int, str]]) -> list[int]:
    """Number the roles: players by their number, then the sub-agents in order of their names."""
    num_players = 1 + max((player for player, _ in roles), default=0)
    agents = sorted({agent for _, agent in roles if agent})
    return [num_players + agents.index(agent) if agent else player for player, agent in roles]


def _parents(groups: Sequence[TrajectoryGroup]) -> list[int]:
    """Return the parent of each turn's trajectory as an index into the batch's valid trajectories, -1 for none."""
    parents: list[int] = []
    first = 0
    for group in groups:
        place = {id(t): first + at for at, t in enumerate(group.valid)}
        for t in group.valid:
            parent = place.get(id(group.trajectories[t.parent]), -1) if t.parent >= 0 else -1
            parents += [parent] * len(t.turns)
        first += len(group.valid)
    return parents


def _observations(trajectory: Trajectory) -> list[str]:
    said, texts = trajectory.observation, []
    for turn in trajectory.turns:
        texts.append("\n".join(message.text for message in said))
        said = said if turn.kind == "summary" else turn.replies
    return texts


def _moments(trajectory: Trajectory) -> list[int]:
    """Return the rank of each turn in time; turns of sub-agents come after the turn that asked, call by call."""
    asked = [
        (segment.asked_at if segment.asked_at >= 0 else len(trajectory.turns), 1, segment.invocation)
        if segment.agent
        else (turn.index, 0, 0)
        for segment in trajectory.segments
        for turn in segment.turns
    ]
    order = sorted(range(len(asked)), key=asked.__getitem__)
    return [order.index(row) for row in range(len(asked))]


def _by_segment(value: Callable[[Trajectory, int, Segment], object]) -> Callable[[Trajectory], list[object]]:
    """Return a function that gives every turn of an episode the value of its segment.

    ``value`` takes the episode, the segment's index and the segment.
    """
    return lambda t: [value(t, index, segment) for index, segment in enumerate(t.segments) for _ in segment.turns]


def outcome_of(trajectory: Trajectory) -> float:
    """Return the sum of an episode's reward parts with the role ``outcome``."""
    parts = (part for turn in trajectory.turns for part in turn.reward_parts)
    return sum(part.value for part in parts if part.role is RewardRole.OUTCOME)


def _parts(turns: Iterable[Turn]) -> dict[str, object]:
    rows = [turn.reward_parts for turn in turns]
    kinds = sorted({(part.name, part.role) for row in rows for part in row}) or [("reward", RewardRole.OUTCOME)]
    at = {kind: index for index, kind in enumerate(kinds)}
    values = np.zeros((len(rows), len(kinds)))
    for index, row in enumerate(rows):
        for part in row:
            values[index, at[part.name, part.role]] += part.value
    return {
        "part_names": tuple(name for name, _ in kinds),
        "part_roles": tuple(role for _, role in kinds),
        "part_values": values,
    }


def _has_error(turn: Turn) -> bool:
    return any(reply.result is not None and reply.result.is_error for reply in turn.replies)


PER_TURN: dict[str, Callable[[Turn], object]] = {
    "is_void": lambda turn: turn.is_void,
    "is_patched": lambda turn: turn.played is not None,
    "is_faulty": lambda turn: turn.is_faulty,
    "num_calls": lambda turn: len(turn.action.calls),
    "is_executed": lambda turn: turn.is_valid and not turn.is_void and not _has_error(turn),
    "num_errors": lambda turn: sum(reply.result is not None and reply.result.is_error for reply in turn.replies),
    "num_tokens": lambda turn: len(turn.completion.token_ids),
    "num_shared_tokens": lambda turn: turn.num_copied_tokens - turn.num_rescored_tokens,
    "action": action_key,
    "answer": _answer,
}
PER_EPISODE: dict[str, Callable[[Trajectory], Sequence[object]]] = {
    "num_answers": _answer_counts,
    "segment": _by_segment(lambda t, index, segment: index),
    "role": _by_segment(lambda t, index, segment: (t.player, segment.agent)),
    "invocation": _by_segment(lambda t, index, segment: segment.invocation),
    "moment": _moments,
    "observation": _observations,
    "is_truncated": lambda t: [t.status in CUT] * len(t.turns),
    "player_outcome": lambda t: [outcome_of(t)] * len(t.turns),
    "parent": lambda t: [t.parent] * len(t.turns),
    "branch_turn": lambda t: [t.branch_turn] * len(t.turns),
    "final_anchor": lambda t: [t.final_state_key] * len(t.turns),
}
FROM_GROUPS = ("part_values", "group_keys", *PER_TURN, *PER_EPISODE)
"""Names of the columns that :func:`turn_table` can fill."""
OF_CRITIC = ("value", "token_value", "q_value", "progress")
"""Columns that a critic computes."""
OF_MODEL = ("entropy", "token_entropy", "answer_logprobs", "answer_lengths", "drift", *OF_CRITIC)
"""Columns that a trainer's models compute."""
OF_SHAPERS = {"info_gain": "information_gain"}
"""Columns that a shaper computes, with its name."""
