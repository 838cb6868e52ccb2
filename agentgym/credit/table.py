"""The input and output of credit assignment: turns as columns of plain arrays, one row per turn.

A row is identified by (group, trajectory, turn). Token ids do not occur, so estimators do not depend on the layout of a
trainer's batches. Two columns are per token (:attr:`TurnTable.token_value`, :attr:`TurnTable.token_entropy`): flat
arrays over the *sampled* tokens in the order of the rows, without observation tokens.

Shapes in this package: N turns, I trajectories, M sampled tokens, P reward parts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.inputs import (
    NO_ROWS,
    PER_TOKEN,
    PER_TRAJECTORY,
    by_value,
    check_finite,
    check_ragged,
    check_rows,
    codes_of,
    column_of,
    group_codes,
    is_list,
    plain,
    read_only,
    role_named,
)
from agentgym.credit.row_order import in_given_order, sorted_columns
from agentgym.errors import ConfigError, require_known
from agentgym.types import RewardRole

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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
    moment: Ints | None = None
    """Rank of the turn in time among those of its trajectory, from 0; sub-agents' turns are rows after all others."""
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
    source_row: Ints | None = None
    """Position of the row among those given to :meth:`from_rows`; None for other tables."""

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
        last = int(np.max(self.trajectory, initial=-1))  # trajectories after it have no turns
        for name in PER_TRAJECTORY:
            column = getattr(self, name)
            if column is not None and len(column) <= last:
                raise ConfigError(f"column {name!r} has {len(column)} entries, the table {last + 1} trajectories")
        if np.min(self.turn, initial=0) < 0:
            raise ConfigError(f"column 'turn' holds {np.min(self.turn)}, expected positions counted from 0")
        self._check_order()

    def _check_order(self) -> None:
        """Check that rows are sorted by trajectory and turn, and that a trajectory is in one group."""
        step, is_later = np.diff(self.trajectory), np.diff(self.turn) > 0
        is_next = (step > 0) | ((step == 0) & is_later & (self.group[1:] == self.group[:-1]))
        if is_next.all():
            return
        row = int(np.argmin(is_next)) + 1
        where = f"row {row} is turn {self.turn[row]} of trajectory {self.trajectory[row]} in group {self.group[row]}"
        before = f"turn {self.turn[row - 1]} of trajectory {self.trajectory[row - 1]} in group {self.group[row - 1]}"
        raise ConfigError(
            f"{where}, after {before}: rows are sorted by trajectory and turn, a turn occurs once, and a trajectory is "
            "in one group; TurnTable.from_rows sorts rows"
        )

    @classmethod
    def from_lists(
        cls,
        *,
        rewards: Sequence[Sequence[float]],
        states: Sequence[Sequence[Hashable]] | None = None,
        is_valid: Sequence[Sequence[bool]] | None = None,
        group_of_trajectory: Sequence[Hashable],
    ) -> TurnTable:
        """Build a table from one list per trajectory; :meth:`with_columns` adds the optional columns.

        Rows may be lists, arrays or tensors.

        Args:
            rewards: turn rewards.
            states: state key in which each turn was taken; by default every turn is its own anchor group. Keys are
                compared by value: text, numbers, arrays, or lists and dicts of them.
            is_valid: True where the turn's action was well-formed and possible; all True by default.
            group_of_trajectory: group of each trajectory, a number or text; trajectories of one group share task and
                start state. Ids that are not integers are numbered in the order in which they appear.

        Raises:
            ConfigError: a list does not have one entry per trajectory and turn; the message names the first such list.
                Or a reward is not finite, or a state cannot be compared by value.
        """
        rewards = [plain(row) for row in rewards]
        states = None if states is None else [plain(row) for row in states]
        is_valid = None if is_valid is None else [plain(row) for row in is_valid]
        check_ragged(rewards, states=states, is_valid=is_valid)
        check_finite(rewards)
        if not is_list(group_of_trajectory):
            raise ConfigError(f"group_of_trajectory is {group_of_trajectory!r}, expected one group per trajectory")
        if len(group_of_trajectory) != len(rewards):
            raise ConfigError(
                f"group_of_trajectory has {len(group_of_trajectory)} entries, expected one for each of the "
                f"{len(rewards)} trajectories"
            )
        lengths = np.array([len(row) for row in rewards], dtype=np.int64)
        trajectory = np.repeat(np.arange(len(rewards), dtype=np.int64), lengths)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if rewards else lengths
        num_turns = int(lengths.sum())
        groups = group_codes(group_of_trajectory)
        if states is None:
            anchor = np.arange(num_turns, dtype=np.int64)
        else:
            keyed = zip(groups.tolist(), states, strict=True)
            anchor = codes_of([(group, by_value(key, "state")) for group, row in keyed for key in row])
        return cls(
            group=groups[trajectory],
            trajectory=trajectory,
            turn=np.arange(num_turns, dtype=np.int64) - starts[trajectory],
            reward=np.array([r for row in rewards for r in row], dtype=np.float64),
            anchor=anchor,
            is_valid=np.ones(num_turns, dtype=np.bool_) if is_valid is None else column_of("is_valid", is_valid),
        )

    @classmethod
    def from_rows(cls, **columns: Any) -> TurnTable:
        """Build a table from columns whose rows may be in any order; they are sorted by trajectory and turn.

        The columns ``group``, ``trajectory``, ``turn`` and ``reward`` are required. Ids of groups and trajectories may
        be text, and ``parent`` names a trajectory by its id. ``anchor`` and ``final_anchor`` may be any state keys;
        equal keys of different groups are different states. Columns per token follow the order of the rows. Columns
        per trajectory (``answer_logprobs``) or group (``group_keys``) are dicts by id, or lists in the order of the ids
        if these are numbers. ``credit_turns`` returns its result in the order of the rows given here.

        Raises:
            ConfigError: a column is missing, unknown or of another length; a turn occurs twice; or a trajectory is in
                two groups.

        Example:
            >>> TurnTable.from_rows(group=[0, 0], trajectory=[7, 7], turn=[1, 0], reward=[1, 0]).reward.tolist()
            [0.0, 1.0]
        """
        cls._check_names(columns, required=("group", "trajectory", "turn", "reward"))
        return cls(**sorted_columns(columns))

    def in_given_order(self, values: Any) -> Any:
        """Return values of the rows ``[N]`` or sampled tokens ``[M]`` in the order in which ``from_rows`` got them.

        ``credit_turns`` returns its result in that order; what an estimator returns is in the table's order.

        Example:
            >>> table = TurnTable.from_rows(group=[0, 0], trajectory=["b", "a"], turn=[0, 0], reward=[1, 0])
            >>> table.reward.tolist(), table.in_given_order(table.reward).tolist()
            ([0.0, 1.0], [1.0, 0.0])
        """
        return in_given_order(self, values)

    @classmethod
    def _check_names(cls, columns: Mapping[str, object], required: Sequence[str] = ()) -> None:
        known = {field.name for field in fields(cls)} - {"source_row"}
        for name in columns:
            require_known("column", name, known, "states are the column anchor, ids as verl's uid the column group")
        if missing := [name for name in required if name not in columns]:
            raise ConfigError(f"the columns {', '.join(missing)} are missing; {', '.join(required)} are required")

    def with_columns(self, **columns: object) -> TurnTable:
        """Return a copy with columns added or replaced; values may be arrays, flat lists, or one list per trajectory.

        Raises:
            ConfigError: a column is unknown or has the wrong length.

        Example:
            >>> table = TurnTable.from_lists(rewards=[[0, 1], [1]], group_of_trajectory=[0, 0])
            >>> table.with_columns(num_tokens=[[4, 2], [3]]).num_tokens.tolist()
            [4, 2, 3]
        """
        self._check_names(columns)
        self._check_is_in_order(columns)
        turns = np.bincount(self.trajectory)
        for name, value in columns.items():
            if name not in (*NO_ROWS, "q_value", "part_values", "observation"):
                check_rows(f"column {name!r}", value, turns)
        return replace(self, **{name: column_of(name, value) for name, value in columns.items()})

    def with_parts(self, **parts: tuple[RewardRole | str, Sequence[object]]) -> TurnTable:
        """Return a copy whose rewards are the sums of named parts, each given as ``(role, values per turn)``.

        Roles are those of :class:`RewardRole`: ``outcome``, ``process``, ``format`` and ``cost``.

        Raises:
            ConfigError: a role is unknown, or a part does not have one value per turn.

        Example:
            >>> table = TurnTable.from_lists(rewards=[[0, 0]], group_of_trajectory=[0])
            >>> table.with_parts(solved=("outcome", [0, 1]), steps=("process", [0.1, 0.1])).reward.tolist()
            [0.1, 1.1]
        """
        self._check_is_in_order(parts)
        turns = np.bincount(self.trajectory)
        columns: list[Floats] = []
        roles: list[RewardRole] = []
        for name, part in parts.items():
            if not (isinstance(part, tuple | list) and len(part) == 2 and isinstance(part[0], str)):
                raise ConfigError(f"part {name!r} is {part!r}, expected a role and the values per turn, as a pair")
            roles.append(role_named(part[0], f"of part {name}"))
            check_rows(f"part {name!r}", part[1], turns)
            columns.append(column_of("reward", part[1]))
            if len(columns[-1]) != len(self):
                raise ConfigError(f"part {name!r} has {len(columns[-1])} values, expected {len(self)}, one per turn")
        values = np.stack(columns, axis=1) if columns else np.zeros((len(self), 0))
        return replace(
            self, part_names=tuple(parts), part_roles=tuple(roles), part_values=values, reward=values.sum(axis=1)
        )

    def _check_is_in_order(self, names: Iterable[str]) -> None:
        """Check that the order of columns that are added is known."""
        if self.source_row is not None and (np.diff(self.source_row) < 0).any():
            raise ConfigError(
                f"the rows of this table were sorted, so the order of {', '.join(names)} is unknown: give from_rows "
                "all columns, reward parts as part_names, part_roles and part_values"
            )

    def require(self, *names: str, by: str) -> None:
        """Check that the table has the columns that a component reads.

        Args:
            names: names of the columns.
            by: name of the component, for the error.

        Raises:
            ConfigError: a column is missing; the message names the component and the column.
        """
        if missing := [name for name in names if getattr(self, name) is None]:
            method = "with_parts" if missing == ["part_values"] else "with_columns"
            raise ConfigError(f"{by} needs the columns {', '.join(missing)}: fill them with TurnTable.{method}")

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

    def read_only(self) -> TurnTable:
        """Return the same columns, which cannot be changed in place."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: read_only(column) for name, column in columns.items()})

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
