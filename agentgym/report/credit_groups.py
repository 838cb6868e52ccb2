"""The groups in which estimators differ most, as plain data for the page of ``agentgym credit``."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentgym.credit.compose import ZERO
from agentgym.credit.credited import CreditColumns
from agentgym.credit.recredit import BatchCredit, is_won
from agentgym.credit.table import Floats
from agentgym.report.traces import cut_text, turn_text
from agentgym.types import Message, Trajectory, TrajectoryGroup, Turn

MAX_GROUPS = 40
MAX_CHARACTERS = 3_500_000
"""Most characters of all embedded groups together, as JSON."""
LONGEST_TEXT = 1_500
EXACT = 1e-6
"""Tolerance within which a shaped reward equals the environment's."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group with the data to show it, ordered by how much the estimators differ."""

    rank: tuple[float, bool, float, int, int]
    """Sort key: difference of the estimators, whether outcomes differ, share of credited turns, then earliest first."""
    step: int
    group: TrajectoryGroup
    dropped: str | None
    credit: Mapping[str, CreditColumns]
    """Credit of the group's turns by estimator name."""

    def __lt__(self, other: Candidate) -> bool:
        return self.rank < other.rank


@dataclass(slots=True)
class GroupSample:
    """The :data:`MAX_GROUPS` groups that differ most among all added ones.

    Attributes:
        names: names of the columns to compare.
    """

    names: Sequence[str]
    num_groups: int = 0
    _best: list[Candidate] = field(default_factory=list)

    def add(self, credit: BatchCredit) -> None:
        """Add the groups of a step."""
        groups = credit.batch.groups
        flat = {name: credit.credit[name].advantage for name in self.names}
        of_groups = {name: credit.credit[name].split(groups) for name in self.names}
        differences = _differences(list(flat.values()))
        first_row = 0
        for index, group in enumerate(groups):
            num_turns = sum(len(t.turns) for t in group.valid)
            if num_turns:
                rows = slice(first_row, first_row + num_turns)
                rank = (
                    round(float(differences[rows].mean()), 9),
                    len({t.success for t in group.valid}) > 1,
                    float(np.mean([np.nan_to_num(np.abs(a[rows])) > ZERO for a in flat.values()])),
                    -credit.batch.step,
                    -index,
                )
                dropped = credit.batch.dropped[index] if credit.batch.dropped else None
                given = {name: pieces[index] for name, pieces in of_groups.items()}
                self._keep(Candidate(rank, credit.batch.step, group, dropped, given))
            first_row += num_turns
            self.num_groups += 1

    def _keep(self, candidate: Candidate) -> None:
        if len(self._best) < MAX_GROUPS:
            heapq.heappush(self._best, candidate)
        else:
            heapq.heappushpop(self._best, candidate)

    def data(self) -> dict[str, Any]:
        """Return columns and groups as JSON data: the groups that differ most first, as many as fit."""
        left = MAX_CHARACTERS
        groups: list[dict[str, Any]] = []
        for candidate in sorted(self._best, reverse=True):
            row = _group(candidate, self.names)
            left -= len(json.dumps(row))
            if left < 0:
                break
            groups.append(row)
        return {"columns": [self._column(name, at, groups) for at, name in enumerate(self.names)], "groups": groups}

    def _column(self, name: str, at: int, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
        turns = [turn["credit"][at] for group in groups for m in group["members"] for turn in m["turns"]]
        sizes = sorted(size for credit in turns if credit is not None and (size := abs(credit["a"] or 0.0)) > ZERO)
        return {
            "name": name,
            "scale": sizes[int(len(sizes) * 0.95)] if sizes else 0.0,
            "compares_states": any(credit is not None and "k" in credit for credit in turns),
        }


def _differences(columns: Sequence[Floats]) -> Floats:
    """Return the range of each turn's advantages over all columns, each in units of its standard deviation."""
    scaled = []
    for column in columns:
        spread = float(np.nanstd(column)) if np.isfinite(column).any() else 0.0
        scaled.append(np.nan_to_num(column) / (spread if spread > ZERO else 1.0))
    return np.asarray(np.ptp(np.stack(scaled), axis=0), dtype=np.float64)


def _group(candidate: Candidate, names: Sequence[str]) -> dict[str, object]:
    members: list[dict[str, object]] = []
    states: dict[Any, int] = {}
    row = 0
    for trajectory in candidate.group.trajectories:
        is_evidence = trajectory.status.is_evidence
        turns = [
            _turn(
                turn,
                [_credit(candidate.credit[name], row + at, turn.reward) for name in names]
                if is_evidence
                else [None] * len(names),
            )
            for at, turn in enumerate(trajectory.turns)
        ]
        row += len(turns) * is_evidence
        members.append(_member(trajectory, turns))
        for turn, shown in zip(trajectory.turns, turns, strict=True):
            shown["state"] = states.setdefault(turn.state_key or object(), len(states))
    return {
        "step": candidate.step + 1,
        "task": candidate.group.task.id,
        "dropped": candidate.dropped,
        "difference": _short(candidate.rank[0]),
        "is_lost": not is_won(candidate.group),
        "members": members,
    }


def _member(trajectory: Trajectory, turns: list[dict[str, object]]) -> dict[str, object]:
    return {
        "status": trajectory.status.value,
        "success": trajectory.success,
        "return": None if trajectory.reward is None else _short(trajectory.reward),
        "opening": _said(trajectory.observation),
        "turns": turns,
    }


def _turn(turn: Turn, credit: list[dict[str, object] | None]) -> dict[str, object]:
    return {
        "action": turn_text(turn),
        "reply": _said(turn.replies),
        "valid": turn.is_valid,
        "parts": [[part.name, part.role.value, _short(part.value)] for part in turn.reward_parts],
        "credit": credit,
    }


def _credit(credit: CreditColumns, row: int, reward: float) -> dict[str, object] | None:
    """Return advantage ``a`` and return to go ``g`` of a turn; and, if they differ from the default, anchor group
    ``k``, shaped reward ``r``, loss weight ``w`` and closed gate ``shut``."""
    weight, advantage, shaped = (float(c[row]) for c in (credit.loss_weight, credit.advantage, credit.shaped_reward))
    if math.isnan(weight):
        return None
    given: dict[str, object] = {"a": _short(advantage), "g": _short(float(credit.return_to_go[row]))}
    if credit.anchor_size[row]:
        given["k"] = int(credit.anchor_group[row])
    if abs(shaped - reward) > EXACT:
        given["r"] = _short(shaped)
    if weight != 1.0:
        given["w"] = _short(weight)
    if not credit.gate_open[row]:
        given["shut"] = True
    return given


def _short(value: float) -> float | None:
    """Round to four significant digits, which keeps the page small; return None for a value that JSON cannot hold."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


def _said(messages: Sequence[Message]) -> str:
    return cut_text("\n".join(message.text for message in messages), LONGEST_TEXT)
