"""The input and output of credit assignment: turns as columns of plain arrays, one row per turn.

A row is identified by (group, trajectory, turn). Token ids do not occur, so estimators do not depend on the layout of a
trainer's batches. Two columns are per token (:attr:`TurnTable.token_value`, :attr:`TurnTable.token_entropy`): flat
arrays over the *sampled* tokens in the order of the rows, without observation tokens.

Shapes in this package: N turns, I trajectories, M sampled tokens, P reward parts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym.errors import ConfigError
from agentgym.types import RewardRole

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

DTYPES: dict[str, type] = {
    **dict.fromkeys(("is_valid", "is_void", "is_truncated", "is_executed", "is_patched", "is_faulty"), np.bool_),
    **dict.fromkeys(("reward", "entropy", "value", "q_value", "info_gain", "progress"), np.float64),
    **dict.fromkeys(("player_outcome", "drift", "token_value", "token_entropy", "part_values"), np.float64),
    **dict.fromkeys(("group", "trajectory", "turn", "anchor", "action", "final_anchor", "answer"), np.int64),
    **dict.fromkeys(("num_calls", "num_errors", "num_answers", "num_tokens", "segment"), np.int64),
    "num_shared_tokens": np.int64,
    **dict.fromkeys(("role", "invocation", "parent", "branch_turn"), np.int64),
}
PER_TOKEN = ("token_value", "token_entropy")
PER_TRAJECTORY = ("answer_logprobs", "answer_lengths")
NO_ROWS = ("part_names", "part_roles", "group_keys", *PER_TOKEN, *PER_TRAJECTORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTable:
    """Turns of a batch, shape ``[N]`` each, sorted by trajectory and then by turn.

    The columns without a default always exist. The others are None unless the caller supplies them; a component that
    needs one checks it with :meth:`require`.

    Example (two trajectories of one group, with two turns and one turn):
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0.0, 1.0], [0.5]], states=[["a", "b"], ["a"]], group_of_trajectory=[0, 0])
        >>> table.trajectory.tolist(), table.turn.tolist(), table.anchor.tolist()
        ([0, 0, 1], [0, 1, 0], [0, 1, 0])
    """

    group: Ints
    """Group of each turn's trajectory, counted from 0."""
    trajectory: Ints
    """Trajectory of each turn, counted from 0 over the batch."""
    turn: Ints
    """Position of the turn in its trajectory, counted from 0."""
    reward: Floats
    anchor: Ints
    """Code of the anchor group: equal exactly for turns of one group that were taken in the same state."""
    is_valid: Bools

    part_names: tuple[str, ...] = ()
    part_roles: tuple[RewardRole, ...] = ()
    part_values: Floats | None = None
    """``[N, P]`` parts of each turn's reward, named by ``part_names``; their sum is ``reward``."""
    group_keys: tuple[str, ...] | None = None
    """Name of each group's task, indexed by ``group``. It is the same in every batch, so trackers use it as a key."""
    is_void: Bools | None = None
    """The turn made no call and gave no answer."""
    is_patched: Bools | None = None
    """The environment played an expert's action in place of the policy's (UI-S1)."""
    is_faulty: Bools | None = None
    """The first wrong turn of the trajectory, as a judge found it (SCOPE); all False where there is none."""
    num_calls: Ints | None = None
    """Number of tool calls in the turn, malformed ones included."""
    num_errors: Ints | None = None
    """Number of calls in the turn whose reply was an error."""
    num_answers: Ints | None = None
    """Number of final answers in the turn (GRPO-RoC's format penalty)."""
    num_tokens: Ints | None = None
    """Number of sampled tokens of the turn."""
    num_shared_tokens: Ints | None = None
    """Number of tokens at the start of a branch's first own turn that are copies of the parent's turn there."""
    segment: Ints | None = None
    """Index of the turn's context window in its trajectory, counted from 0."""
    role: Ints | None = None
    """Code of the player or agent that acts; 0 is the main agent."""
    invocation: Ints | None = None
    """Index of the call of a sub-agent that the turn belongs to, counted from 0; -1 for the main agent."""
    is_truncated: Bools | None = None
    """The trajectory was truncated by a limit before it gave an answer."""
    parent: Ints | None = None
    """Trajectory that this one branched from (tree rollouts, retries), -1 if none."""
    branch_turn: Ints | None = None
    """First turn that differs from the parent's; turns before it are copies."""
    action: Ints | None = None
    """Code of the canonical parsed action: equal exactly for equal actions."""
    final_anchor: Ints | None = None
    """State in which the trajectory ended, in the codes of ``anchor``; -1 if unknown, which equals no other state."""
    observation: tuple[str, ...] | None = None
    """Observation before the turn, as text, for anchors by similarity."""
    answer: Ints | None = None
    """Code of the turn's answer: equal exactly for equal answers, -1 if missing or malformed (UFO)."""
    entropy: Floats | None = None
    """Mean token entropy of the turn under the sampling policy, in nats."""
    value: Floats | None = None
    """Critic's value of the state in which the turn was taken."""
    q_value: Floats | None = None
    """Critic's value of (state, action): ``[N]``, or ``[N, C]`` for C critics, of which the minimum is used."""
    info_gain: Floats | None = None
    """Information gain of the turn (IGPO), NaN where it is not defined; the shaper ``information_gain`` computes it."""
    progress: Floats | None = None
    """Learned progress estimate of the turn (SPA)."""
    is_executed: Bools | None = None
    """The action took effect in the environment (SPA); without this column ``is_valid`` is used."""
    player_outcome: Floats | None = None
    """Final result of the game for the player whose turn it is (SPIRAL)."""
    drift: Floats | None = None
    """Mean |log-prob then - log-prob now| over the tokens of the task's previous response (SPO); 0 for a new task."""
    answer_logprobs: tuple[Floats, ...] | None = None
    """Per trajectory ``[C, R]``: mean log-prob of each of R reference answers at C points, before the first turn and
    after each turn that was followed by an observation (IGPO)."""
    answer_lengths: tuple[Ints, ...] | None = None
    """Per trajectory ``[R]``: number of tokens of each reference answer."""
    token_value: Floats | None = None
    """``[M]`` critic's value before each sampled token; ``M`` is ``num_tokens.sum()``."""
    token_entropy: Floats | None = None
    """``[M]`` entropy of the distribution from which each token was sampled, in nats."""

    def __post_init__(self) -> None:
        num_turns = len(self.reward)
        for field in fields(self):
            column = getattr(self, field.name)
            if column is None or field.name in NO_ROWS or len(column) == num_turns:
                continue
            raise ConfigError(f"column {field.name!r} has {len(column)} rows, the table {num_turns}")
        for name in PER_TOKEN:
            column = getattr(self, name)
            if column is not None and (self.num_tokens is None or len(column) != int(self.num_tokens.sum())):
                raise ConfigError(f"column {name!r} needs one entry per sampled token, so also column 'num_tokens'")

    @classmethod
    def from_lists(
        cls,
        *,
        rewards: Sequence[Sequence[float]],
        states: Sequence[Sequence[Hashable]] | None = None,
        is_valid: Sequence[Sequence[bool]] | None = None,
        group_of_trajectory: Sequence[int],
    ) -> TurnTable:
        """Build a table from one list per trajectory; :meth:`with_columns` adds the optional columns.

        Args:
            rewards: turn rewards.
            states: state key in which each turn was taken; by default every turn is its own anchor group.
            is_valid: True where the turn's action was well-formed and possible; all True by default.
            group_of_trajectory: group of each trajectory; trajectories of one group share task and start state.

        Raises:
            ConfigError: a list does not have one entry per trajectory and turn; the message names the first such list.
                Or a reward is not finite.
        """
        _check_ragged(rewards, states=states, is_valid=is_valid)
        _check_finite(rewards)
        if len(group_of_trajectory) != len(rewards):
            raise ConfigError(
                f"group_of_trajectory has {len(group_of_trajectory)} entries, expected one for each of the "
                f"{len(rewards)} trajectories"
            )
        lengths = np.array([len(row) for row in rewards], dtype=np.int64)
        trajectory = np.repeat(np.arange(len(rewards), dtype=np.int64), lengths)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if len(rewards) else lengths
        num_turns = int(lengths.sum())
        if states is None:
            anchor = np.arange(num_turns, dtype=np.int64)
        else:
            keyed = zip(group_of_trajectory, states, strict=True)
            anchor = codes_of([(int(group), key) for group, row in keyed for key in row])
        valid = [True] * num_turns if is_valid is None else [flag for row in is_valid for flag in row]
        return cls(
            group=np.asarray(group_of_trajectory, dtype=np.int64)[trajectory],
            trajectory=trajectory,
            turn=np.arange(num_turns, dtype=np.int64) - starts[trajectory],
            reward=np.array([r for row in rewards for r in row], dtype=np.float64),
            anchor=anchor,
            is_valid=np.array(valid, dtype=np.bool_),
        )

    @classmethod
    def from_rows(cls, **columns: Any) -> TurnTable:
        """Build a table from columns whose rows may be in any order; they are sorted by trajectory and turn.

        Example:
            >>> TurnTable.from_rows(group=[0, 0], trajectory=[7, 7], turn=[1, 0], reward=[1, 0]).reward.tolist()
            [0.0, 1.0]
        """
        num_turns = len(columns["reward"])
        columns = {"anchor": np.arange(num_turns), "is_valid": np.ones(num_turns, dtype=np.bool_), **columns}
        columns["trajectory"] = codes_of(np.asarray(columns["trajectory"]).tolist(), in_order=True)
        order = np.lexsort((np.asarray(columns["turn"]), columns["trajectory"]))
        table = {
            name: _column(name, column) if name in NO_ROWS else _column(name, column)[order]
            for name, column in columns.items()
        }
        return cls(**table)

    def with_columns(self, **columns: object) -> TurnTable:
        """Return a copy with columns added or replaced; values may be arrays, flat lists, or one list per trajectory.

        Raises:
            ConfigError: a column is unknown or has the wrong length.

        Example:
            >>> table = TurnTable.from_lists(rewards=[[0, 1], [1]], group_of_trajectory=[0, 0])
            >>> table.with_columns(num_tokens=[[4, 2], [3]]).num_tokens.tolist()
            [4, 2, 3]
        """
        known = {field.name for field in fields(self)}
        if unknown := sorted(set(columns) - known):
            raise ConfigError(f"unknown columns {unknown}; known: {', '.join(sorted(known))}")
        for name, value in columns.items():
            self._check_rows(name, value)
        return replace(self, **{name: _column(name, value) for name, value in columns.items()})

    def _check_rows(self, name: str, value: Any) -> None:
        """Check a column given as one list per trajectory, and name the list that is too short or too long."""
        is_by_trajectory = isinstance(value, list | tuple) and all(isinstance(row, list | tuple) for row in value)
        if not is_by_trajectory or name in (*NO_ROWS, "q_value", "part_values", "observation"):
            return
        turns = np.bincount(self.trajectory).tolist() if len(self) else []
        if len(value) != len(turns):
            raise ConfigError(
                f"column {name!r} has {len(value)} lists, expected one for each of {len(turns)} trajectories"
            )
        for number, (row, num_turns) in enumerate(zip(value, turns, strict=True)):
            if len(row) != num_turns:
                raise ConfigError(
                    f"column {name!r}: list {number} has {len(row)} entries, expected {num_turns}, one per turn"
                )

    def with_parts(self, **parts: tuple[RewardRole | str, Sequence[object]]) -> TurnTable:
        """Return a copy whose rewards are the sums of named parts, each given as ``(role, values per turn)``.

        Roles are those of :class:`RewardRole`: ``outcome``, ``process``, ``format`` and ``cost``.

        Example:
            >>> table = TurnTable.from_lists(rewards=[[0, 0]], group_of_trajectory=[0])
            >>> table.with_parts(solved=("outcome", [0, 1]), steps=("process", [0.1, 0.1])).reward.tolist()
            [0.1, 1.1]
        """
        values = np.stack([_column("reward", value) for _, value in parts.values()], axis=1)
        roles = tuple(RewardRole(role) for role, _ in parts.values())
        return replace(self, part_names=tuple(parts), part_roles=roles, part_values=values, reward=values.sum(axis=1))

    def require(self, *names: str, by: str) -> None:
        """Check that the table has the columns that a component reads.

        Args:
            names: names of the columns.
            by: name of the component, for the error.

        Raises:
            ConfigError: a column is missing; the message names the component and the column.
        """
        if missing := [name for name in names if getattr(self, name) is None]:
            columns = ", ".join(missing)
            raise ConfigError(f"{by} needs the columns {columns}: fill them with TurnTable.with_columns")

    def column(self, name: str, *, by: str) -> Any:
        """Return a column that a component reads, after :meth:`require`."""
        self.require(name, by=by)
        return getattr(self, name)

    def take(self, keep: Bools) -> TurnTable:
        """Return the rows where ``keep`` is True; trajectories are renumbered from 0.

        ``keep`` must be equal for all turns of a trajectory. A parent that is left out becomes -1.
        """
        kept = np.unique(self.trajectory[keep])
        token_keep = None if self.num_tokens is None else np.repeat(keep, self.num_tokens)
        columns: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if column is None or field.name in ("part_names", "part_roles", "group_keys"):
                continue
            if field.name in PER_TRAJECTORY:
                columns[field.name] = tuple(column[index] for index in kept.tolist())
            elif field.name == "observation":
                columns[field.name] = tuple(column[index] for index in np.flatnonzero(keep).tolist())
            else:
                columns[field.name] = column[token_keep if field.name in PER_TOKEN else keep]
        columns["trajectory"] = np.searchsorted(kept, columns["trajectory"])
        if self.parent is not None:
            at = np.minimum(np.searchsorted(kept, columns["parent"]), max(len(kept) - 1, 0))
            columns["parent"] = np.where(np.isin(columns["parent"], kept), at, -1)
        return replace(self, **columns)

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAdvantages:
    """The result of an estimator, shape ``[N]`` each, in the rows of its table."""

    advantage: Floats
    return_to_go: Floats
    """The turn's return, or the regression target of a critic."""
    anchor_group: Ints | None = None
    """Code of the group of turns that the turn was compared with; None if the estimator compares no states."""
    anchor_size: Ints | None = None
    token_advantage: Floats | None = None
    """``[M]`` for estimators at token granularity; ``advantage`` is then the mean over the turn's tokens."""
    token_return: Floats | None = None
    """``[M]`` target of a token-level critic."""
    loss_weight: Floats | None = None
    """Weight of the turn in the loss, 0 to leave it out; None means 1 everywhere."""


def codes_of(keys: Sequence[Hashable], *, in_order: bool = False) -> Ints:
    """Return integers that are equal exactly for equal keys, numbered by first appearance or by the keys' order.

    Example:
        >>> codes_of(["b", "a", "b"]).tolist(), codes_of(["b", "a", "b"], in_order=True).tolist()
        ([0, 1, 0], [1, 0, 1])
    """
    first = sorted(set(keys)) if in_order else ()  # type: ignore[type-var]
    codes: dict[Hashable, int] = {key: code for code, key in enumerate(first)}
    return np.fromiter((codes.setdefault(key, len(codes)) for key in keys), np.int64, len(keys))


def _check_ragged(rewards: Sequence[Sequence[float]], **others: Sequence[Sequence[object]] | None) -> None:
    for name, rows in (("rewards", rewards), *others.items()):
        if rows is None:
            continue
        for number, row in enumerate(rows):
            if not isinstance(row, Sequence | np.ndarray) or isinstance(row, str):
                raise ConfigError(
                    f"{name}[{number}] is {row!r}, expected the list of a trajectory's turns: one list per trajectory"
                )
        if len(rows) != len(rewards):
            raise ConfigError(f"{name} has {len(rows)} lists, expected one for each of the {len(rewards)} trajectories")
        for number, (row, turns) in enumerate(zip(rows, rewards, strict=True)):
            if len(row) != len(turns):
                raise ConfigError(f"{name}[{number}] has {len(row)} entries, expected {len(turns)}, one per turn")


def _check_finite(rewards: Sequence[Sequence[float]]) -> None:
    for number, row in enumerate(rewards):
        for turn, reward in enumerate(row):
            if not math.isfinite(reward):
                raise ConfigError(f"rewards[{number}][{turn}] is {reward}, expected a finite number")


def _flat(name: str, value: Sequence[Any]) -> list[object]:
    for number, row in enumerate(value):
        if not isinstance(row, list | tuple):
            raise ConfigError(
                f"column {name!r}: entry {number} is {row!r} among lists; give one list per trajectory, or none"
            )
    return [item for row in value for item in row]


def _column(name: str, value: Any) -> Any:
    if value is None or isinstance(value, Mapping):
        return value
    if name in ("part_names", "part_roles", "group_keys"):
        return tuple(value)
    if name in PER_TRAJECTORY:
        dtype = np.float64 if name == "answer_logprobs" else np.int64
        return tuple(np.asarray(row, dtype=dtype) for row in value)
    is_nested = not isinstance(value, np.ndarray) and any(isinstance(row, list | tuple) for row in value)
    flat = _flat(name, value) if is_nested and name not in ("q_value", "part_values") else value
    return tuple(flat) if name == "observation" else np.asarray(flat, dtype=DTYPES[name])
