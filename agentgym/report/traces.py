"""The episodes of a run as data for the trace viewer: all of them, or a sample if they are too many for a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from agentgym.canonical import readable_json
from agentgym.credit.shapers.gating import GraOptions
from agentgym.evals.episodes import key_of, read_groups, read_rows
from agentgym.report.gates import counted_parts, gate_options, gates_of
from agentgym.report.packing import Packer
from agentgym.report.pictures import acted_on, images_of, missing_files
from agentgym.report.run_folder import RunFolder
from agentgym.report.token_text import TokenText, token_columns
from agentgym.rollout.record import GroupRecord, read_records, record_path
from agentgym.rollout.recredit import read_credit_settings
from agentgym.rollout.token_scores import TurnScores, read_scores
from agentgym.types import MalformedCall, Message, ToolCall, Trajectory, TrajectoryGroup, Turn, TurnCredit

MEGABYTES = 12.0
"""Default size of all compressed episodes in a page."""
FIRST_STEPS = 5
"""Number of steps that get space before any evaluation."""
GROUPS_PER_STEP = 16
LONGEST_TEXT = 6_000


def sample_traces(run: RunFolder, decode: TokenText | None, megabytes: float = MEGABYTES) -> dict[str, object]:
    """Return sections of groups of episodes as JSON data, with the scale of their advantages.

    Training steps are taken from coarse to fine, evenly from the first to the last, until the size is reached. Within a
    step, groups that were trained on and that have both successes and failures come first. Evaluations take at most
    half of the space after the first steps.

    Args:
        megabytes: size limit of all compressed episodes; with 0 no episode is read.

    Returns:
        ``sections`` with the light halves of episodes, and ``blocks`` with the rest (:mod:`agentgym.report.packing`).

    Raises:
        CorruptDataError: a record cannot be read.
    """
    if megabytes <= 0:
        empty: dict[str, Any] = {"scale": 1.0, "has_credit": False, "has_tokens": False, "blocks": [], "sections": []}
        return empty | {"num_steps": 0, "missing": []}
    budget = Packer(round(megabytes * 1e6))
    order = coarse_to_fine(run.steps)
    steps = {step: _step_section(run, step, decode, budget) for step in order[:FIRST_STEPS]}
    kept_for_steps = budget.left / 2 if run.steps else 0.0
    evals = [_eval_section(run, label, decode, budget, kept_for_steps) for label in run.evals]
    for step in order[FIRST_STEPS:]:
        if budget.is_spent:
            break
        steps[step] = _step_section(run, step, decode, budget)
    sections = [section for section in [*(steps[step] for step in sorted(steps)), *evals] if section["groups"]]
    budget.close()
    return {
        "scale": _scale(sections),
        "has_credit": any(cell[0] is not None for cell in _cells(sections)),
        "blocks": budget.blocks,
        "sections": sections,
        "has_tokens": any(section.pop("has_tokens") for section in sections),
        "num_steps": sum(not section["is_eval"] for section in sections),
        "missing": sorted({file for section in sections for file in section.pop("missing")}),
    }


def coarse_to_fine(values: Sequence[int]) -> list[int]:
    """Return all values in the order first, last, middle, and so on between them.

    Example:
        >>> coarse_to_fine(range(9))
        [0, 8, 4, 2, 6, 1, 3, 5, 7]
    """
    last = len(values) - 1
    gaps, step = [], max(1, last)
    while step >= 1:
        gaps.append(step)
        step = step // 2
    places = [0, *(at for gap in gaps for at in range(gap, last + 1, gap)), last]
    return [values[at] for at in dict.fromkeys(places)] if values else []


def _step_section(run: RunFolder, step: int, decode: TokenText | None, budget: Packer) -> dict[str, Any]:
    records = sorted(read_records(record_path(run.path, step), keeps_missing=True), key=_dullness)
    kept, has_tokens = [], False
    scores = read_scores(run.path, step)
    names = {record.group.env_name for record in records}
    gates = {name: gate_options(read_credit_settings(run.path, name)) for name in names}
    for record in records[:GROUPS_PER_STEP]:
        group = _group(record, _Known(decode, gates[record.group.env_name], scores))
        members = budget.takes(group["members"])
        if members is not None:
            kept.append({**group, "members": members})
            has_tokens |= _has_tokens(group["members"])
    return {
        "label": f"step {step + 1}",
        "note": f"{len(kept)} of {len(records)} groups",
        "is_eval": False,
        "missing": _missing(record.group for record in records),
        "has_tokens": has_tokens,
        "groups": kept,
    }


def _dullness(record: GroupRecord) -> tuple[bool, bool]:
    outcomes = {trajectory.success for trajectory in record.group.valid}
    return record.dropped is not None, len(outcomes) < 2


def _eval_section(
    run: RunFolder, label: str, decode: TokenText | None, budget: Packer, kept_for_steps: float
) -> dict[str, object]:
    groups = read_groups(run.evals[label], keeps_missing=True)
    costs = {key_of(row): row.get("cost") for row in read_rows(run.evals[label])}
    # several evaluations share the space, and a short sample should show both outcomes
    chosen = groups if len(run.evals) == 1 else _alternating(groups)
    num_left = len(run.evals) - list(run.evals).index(label)
    keep = kept_for_steps + (budget.left - kept_for_steps) * (1 - 1 / num_left)  # the rest is for those after this one
    kept: list[dict[str, Any]] = []
    has_tokens = False
    are_repeated = len({group.task.id for group in groups}) < len(groups)
    trials: dict[str, int] = {}
    for group in chosen:
        if group.trajectories:
            played = group.trajectories[0]
            cost = costs.get((played.task.id, played.task.content_hash, played.seed))
            member = _member(played, (), _Known(decode)) | {"cost": cost}
            if are_repeated:
                trials[played.task.id] = trials.get(played.task.id, 0) + 1
                member["trial"] = trials[played.task.id]
            taken = budget.takes([member | {"cells": _cells_of([member])[0]}], keep)
            kept += taken or []
            has_tokens |= taken is not None and _has_tokens([member])
    title = f"{len(kept)} of {len(groups)} episodes"
    return {
        "label": f"evaluation {label}".strip(),
        "note": title,
        "is_eval": True,
        "missing": _missing(groups),
        "has_tokens": has_tokens,
        "groups": _by_task(kept) if are_repeated else [{"title": title, "dropped": None, "members": kept}] * bool(kept),
    }


def _missing(groups: Iterable[TrajectoryGroup]) -> set[str]:
    """Return the names of the files of pictures that are missing or were changed."""
    played = [one for group in groups for one in group.trajectories]
    messages = (
        reply for one in played for said in (one.observation, *(t.replies for t in one.turns)) for reply in said
    )
    return {file for message in messages for file in missing_files(message)}


def _by_task(members: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
    """Return a group for each task, whose members are its trials."""
    tasks: dict[str, list[dict[str, Any]]] = {}
    for member in members:
        tasks.setdefault(member["task"], []).append(member)
    return [{"title": f"task {task}", "dropped": None, "members": trials} for task, trials in tasks.items()]


def _alternating(groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return successes and failures alternately, so that a short sample shows both."""
    by_outcome: dict[bool, list[TrajectoryGroup]] = {True: [], False: []}
    for group in groups:
        by_outcome[bool(group.trajectories[0].success)].append(group)
    ranked = [(rank, not won, g) for won, some in by_outcome.items() for rank, g in enumerate(some)]
    return [group for *_, group in sorted(ranked, key=lambda item: item[:2])]


@dataclass(frozen=True, slots=True)
class _Known:
    """Additional facts for the display of an episode."""

    decode: TokenText | None
    gates: GraOptions | None = None
    scores: Mapping[tuple[int, int, int], TurnScores] = field(default_factory=dict)
    entropies: Mapping[tuple[int, int], Sequence[float]] = field(default_factory=dict)
    """Entropies by episode and turn of the group, if credit used them."""
    ordinal: int = 0
    is_dropped: bool = False


def _group(record: GroupRecord, known: _Known) -> dict[str, Any]:
    group = record.group
    known = replace(known, entropies=_entropies(record), ordinal=group.ordinal, is_dropped=record.dropped is not None)
    credit = record.credit or ((),) * len(group.trajectories)
    is_match = any(trajectory.player for trajectory in group.trajectories)
    members = [
        _member(t, c, known, at) | {"player": t.player + 1 if is_match else None}
        for at, (t, c) in enumerate(zip(group.trajectories, credit, strict=False))
    ]
    return {
        "title": (f"{group.env_name}, " if group.env_name else "") + f"task {group.task.id}",
        "dropped": record.dropped,
        "members": [one | {"cells": cells} for one, cells in zip(members, _cells_of(members), strict=True)],
    }


def _entropies(record: GroupRecord) -> dict[tuple[int, int], Sequence[float]]:
    """Return the entropies that credit used, by episode and turn; empty if it used none."""
    flat = record.columns.get("token_entropy")
    found: dict[tuple[int, int], Sequence[float]] = {}
    if flat is None:
        return found
    start = 0
    for member, trajectory in enumerate(record.group.trajectories):
        if not trajectory.status.is_evidence:
            continue
        for at, turn in enumerate(trajectory.turns):
            end = start + len(turn.completion.token_ids)
            found[member, at] = flat[start:end]
            start = end
    return found


def _cells_of(members: Sequence[dict[str, Any]]) -> list[list[list[object]]]:
    """Return a short form of each turn: advantage, validity, and the index of its state among the members' states."""
    numbers: dict[str | None, int] = {}
    return [
        [
            [
                _rounded(turn.get("advantage")),
                int(turn["valid"]),
                None if turn["key"] is None else numbers.setdefault(turn["key"], len(numbers)),
            ]
            for turn in member["turns"]
        ]
        for member in members
    ]


def _has_tokens(members: Sequence[dict[str, Any]]) -> bool:
    return any(turn["tokens"] for member in members for turn in member["turns"])


def _rounded(advantage: float | None) -> float | None:
    return None if advantage is None else float(f"{advantage:.4g}")


def _member(trajectory: Trajectory, credit: Sequence[TurnCredit], known: _Known, place: int = 0) -> dict[str, object]:
    turns, numbers = trajectory.turns, count(1)
    begins = [at > 0 and n == 0 for at, segment in enumerate(trajectory.segments) for n in range(len(segment.turns))]
    agents = [(segment.agent, segment.role) for segment in trajectory.segments for _ in segment.turns]
    counted: Sequence[list[bool] | None] = (
        [None] * len(turns) if known.gates is None else counted_parts(trajectory, known.gates)
    )
    return {
        "task": trajectory.task.id,
        "data": _cut(readable_json(dict(trajectory.task.data), indent=1, default=str)),
        "seed": str(trajectory.seed),  # larger than the integers of JavaScript
        "hash": trajectory.task.content_hash[:8],
        "status": trajectory.status.value,
        "success": trajectory.success,
        "return": trajectory.reward,
        "error": trajectory.error,
        "retries": trajectory.num_retries,
        "parent": None if trajectory.parent < 0 else trajectory.parent + 1,
        "branch_turn": trajectory.branch_turn,
        "attempt": trajectory.attempt + 1,
        "attempts": [_member(other, (), known) for other in trajectory.attempts],
        "replayed": None if trajectory.replayed_step is None else trajectory.replayed_step + 1,
        "demonstrated": trajectory.is_demonstration,
        "opening": _cut("\n".join(message.text for message in trajectory.observation)),
        "opening_images": [image for message in trajectory.observation for image in images_of(message, numbers)],
        "gates": [] if known.gates is None else [asdict(gate) for gate in gates_of(trajectory, known.gates)],
        "turns": [
            _turn(turn, credit[at] if at < len(credit) else None, numbers)
            | _of_tokens(turn, credit[at] if at < len(credit) else None, known, place, at)
            | {"counted": counted[at]}
            | _segment(turn, begins[at], agents[at], known.decode)
            for at, turn in enumerate(turns)
        ],
        "frozen": [
            {"agent": segment.agent, "role": segment.role, "turns": [_frozen(turn) for turn in segment.turns]}
            for segment in trajectory.frozen_segments
        ],
    }


def _frozen(turn: Turn) -> dict[str, object]:
    """Return a turn of a role that is not trained, without tokens, which may be another tokenizer's."""
    return _turn(turn, None, count(1)) | {"tokens": None, "trained": None, "gap": None, "counted": None}


def _of_tokens(turn: Turn, credit: TurnCredit | None, known: _Known, place: int, at: int) -> dict[str, object]:
    return token_columns(
        turn,
        known.decode,
        credit,
        known.scores.get((known.ordinal, place, at)),
        known.entropies.get((place, at)),
        is_dropped=known.is_dropped,
    )


def _segment(turn: Turn, is_first: bool, agent: tuple[str, str], decode: TokenText | None) -> dict[str, object]:
    """Return a note for a turn that begins a context: its first messages, and its agent with its role."""
    prompt = _cut(decode.text(turn.prompt_ids)) if is_first and decode is not None else None
    return {"anew": is_first, "prompt": prompt, "kind": turn.kind, "agent": agent[0], "role": agent[1]}


def _turn(turn: Turn, credit: TurnCredit | None, numbers: count[int]) -> dict[str, object]:
    completion, num_seen = turn.completion, next(copy(numbers)) - 1
    row: dict[str, Any] = {
        "action": turn_text(turn),
        "played": None if turn.played is None else action_text(turn.played),
        "num_tokens": turn.num_sampled_tokens,
        "thinking": _cut(turn.action.thinking),
        "num_thinking": turn.num_thinking_tokens,
        "version": max(completion.policy_versions, default=None),
        "malformed": [call.reason for call in turn.action.calls if isinstance(call, MalformedCall)],
        "replies": [
            _reply(message, numbers) | {"picture": acted_on(turn, message, num_seen)} for message in turn.replies
        ],
        "parts": [[part.name, part.role.value, part.value] for part in turn.reward_parts],
        "key": turn.state_key,
        "valid": turn.is_valid,
        "void": turn.is_void,
        "hint": turn.hint,
        "faulty": turn.is_faulty,
        "seconds": [turn.latency.render_s, turn.latency.generate_s, turn.latency.env_s, turn.latency.wait_s],
    }
    if credit is not None:
        row |= {
            "advantage": credit.advantage,
            "to_go": credit.return_to_go,
            "shaped": credit.shaped_reward,
            "anchor": credit.anchor_group,
            "anchor_size": credit.anchor_size,
            "gate_open": credit.gate_open,
        }
    return row


def turn_text(turn: Turn) -> str:
    """Return the text of a turn's action: as it was sampled where its tokens are known, else :func:`action_text`."""
    is_sampled = bool(turn.completion.token_ids) and bool(turn.action.text)
    return _cut(turn.action.text) if is_sampled else action_text(turn.action)


def action_text(action: Message) -> str:
    """Return the text of an action and its calls, of malformed ones as the model wrote them.

    A call that the text holds already is not repeated.
    """
    told = action.text
    for call in action.calls:
        if isinstance(call, ToolCall):
            told += "" if _is_written(call, action.text) else f"\n{call.name} {readable_json(dict(call.arguments))}"
        else:
            told += "" if call.text in action.text else f"\n{call.text}"
    return _cut(told.strip())


def _is_written(call: ToolCall, text: str) -> bool:
    """Return True if a text holds a call as the compact syntax, JSON or Python write it."""
    name = re.escape(call.name)
    return re.search(rf'^\s*{name}\s*(:|$)|["\']{name}["\']|\b{name}\s*\(|={name}\b', text, re.MULTILINE) is not None


def _reply(message: Message, numbers: Iterator[int]) -> dict[str, object]:
    result = message.result
    return {
        "role": message.role,
        "name": result.name if result is not None else "",
        "text": _cut(message.text),
        "error": result.error_type if result is not None else None,
        "images": images_of(message, numbers),
        "box": result.box if result is not None else None,
    }


def cut_text(text: str, longest: int) -> str:
    """Return a text, cut after ``longest`` characters with a note."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[{len(text) - longest:,} characters more]"


def _cut(text: str) -> str:
    return cut_text(text, LONGEST_TEXT)


def _scale(sections: Sequence[dict[str, object]]) -> float:
    """Return the absolute advantage that gets the full colour: the 95 % quantile."""
    sizes = sorted(abs(advantage) for advantage, *_ in _cells(sections) if advantage)
    return float(sizes[int(len(sizes) * 0.95)]) if sizes else 1.0


def _cells(sections: Sequence[dict[str, Any]]) -> Iterator[list[Any]]:
    for section in sections:
        for group in section["groups"]:
            for member in group["members"]:
                yield from member["cells"]
