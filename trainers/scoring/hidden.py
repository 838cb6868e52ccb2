"""Hidden states of rows of given tokens, one micro-batch at a time, for scoring and critics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.trainers.data.layout import PAD_ID
from agentgym.trainers.types import Trunk


@dataclass(frozen=True, slots=True)
class Span:
    """A span of a packed row: ``length`` tokens that continue the row's first ``after`` tokens.

    The tokens attend to those ``after`` tokens and to earlier tokens of their span. Their positions start at ``after``.
    """

    after: int
    length: int


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row of tokens, and the positions whose hidden states are read.

    Example (the states that predict the last two of five tokens):
        >>> ReadRow((5, 6, 7, 8, 9), at=(2, 3)).num_tokens
        5
    """

    token_ids: Sequence[int]
    at: tuple[int, ...]
    """Positions in ``token_ids``."""
    spans: tuple[Span, ...] = ()
    """Spans at the end of a packed row, one after the other; the tokens before them use causal attention."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def hidden_states(trunk: Trunk, rows: Sequence[ReadRow]) -> Tensor:
    """Return the final hidden states ``[sum of len(row.at), hidden]``, row by row, in the order of ``row.at``."""
    device = next(trunk.parameters()).device
    longest = max(row.num_tokens for row in rows)
    input_ids = torch.full((len(rows), longest), PAD_ID, dtype=torch.long)
    for index, row in enumerate(rows):
        input_ids[index, : row.num_tokens] = torch.tensor(row.token_ids)
    layout: dict[str, Tensor] = {}
    if any(row.spans for row in rows):
        masks, positions = zip(*(_packed_layout(row, longest) for row in rows), strict=True)
        hidden_from = torch.finfo(torch.float32).min  # not -inf: a padded token sees nothing, and would be NaN
        mask = torch.zeros(len(rows), 1, longest, longest).masked_fill_(~torch.stack(masks)[:, None], hidden_from)
        layout = {"attention_mask": mask.to(device), "position_ids": torch.stack(positions).to(device)}
    states: Tensor = trunk(input_ids=input_ids.to(device), use_cache=False, **layout).last_hidden_state
    row_index = torch.tensor([index for index, row in enumerate(rows) for _ in row.at], device=device, dtype=torch.long)
    position = torch.tensor([at for row in rows for at in row.at], device=device, dtype=torch.long)
    return states[row_index, position]


def _packed_layout(row: ReadRow, longest: int) -> tuple[Tensor, Tensor]:
    """Return the attention mask ``[T, T]`` of a packed row and its position ids ``[T]``, padded to ``longest``."""
    sees = torch.ones(longest, longest, dtype=torch.bool).tril_()
    positions = torch.arange(longest)
    at = row.num_tokens - sum(span.length for span in row.spans)
    for span in row.spans:
        sees[at : at + span.length, span.after : at] = False
        positions[at : at + span.length] = torch.arange(span.after, span.after + span.length)
        at += span.length
    return sees, positions
