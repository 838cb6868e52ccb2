"""The training row: token ids, and named columns over the tokens that are trained, scored or valued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentgym.credit.table import Ints


class Span(NamedTuple):
    """A span of a row: ``length`` tokens that continue the row's first ``after`` tokens.

    The tokens attend to those ``after`` tokens and to earlier tokens of their span. Their positions start at ``after``.
    """

    after: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One row of ``T`` token ids, and columns of length ``N`` over the tokens that are read.

    Example (prompt 7 8, the policy sampled 9 2)::

        token_ids   7  8  9    2
        positions         2    3
        advantage         0.5  0.5
        turn_index        0    0
    """

    token_ids: Sequence[int]
    """Those of another rank are :class:`~agentgym.trainers.data.outline.RemoteValues`."""
    positions: Ints
    """``[N]`` positions of the tokens that are read, from the hidden state before each. ``T`` reads the last state."""
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Columns by name. ``is_trained`` leaves tokens out of batches."""
    targets: Ints | None = None
    """``[N]`` ids that are scored in place of those at ``positions``."""
    trajectory: int = 0
    """Number of the trajectory in the step that the row is a segment of."""
    ordinal: int = 0
    """Ordinal of the task that the row belongs to."""
    is_demonstration: bool = False
    """True for a row of an episode that the oracle played; its ``logprob_rollout`` means nothing."""
    spans: tuple[Span, ...] = ()
    """Spans at the end of the row, one after the other; the tokens before them use causal attention."""

    @classmethod
    def of(cls, token_ids: Sequence[int], is_read: ArrayLike, columns: Mapping[str, ArrayLike], **more: Any) -> Row:
        """Return a row of columns over all its tokens, ``[T]`` each, of which those of the read tokens are kept.

        Example:
            >>> row = Row.of((7, 8, 9), [False, False, True], {"advantage": [0, 0, 0.5]})
            >>> row.positions.tolist(), row.columns["advantage"].tolist()
            ([2], [0.5])
        """
        positions = np.flatnonzero(is_read)
        kept = {name: np.asarray(column)[positions] for name, column in columns.items()}
        return cls(token_ids=tuple(token_ids), positions=positions, columns=kept, **more)

    def over_tokens(self, name: str) -> NDArray[Any]:
        """Return a column over all tokens, ``[T]``: 0 for those that are not read."""
        column = np.zeros(len(self.token_ids), self.columns[name].dtype)
        column[self.positions] = self.columns[name]
        return column

    @property
    def in_batch(self) -> Ints:
        """The indices among ``N`` of the tokens that a batch has. Nothing predicts a row's first token."""
        is_trained = self.columns.get("is_trained", np.True_)
        return np.flatnonzero((self.positions > 0) & is_trained)
