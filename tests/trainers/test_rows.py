"""Rows, the batches of all their users, and what earlier runs have written of them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from testkit.token_batches import sample

from agentgym.errors import ConfigError
from agentgym.trainers.critics.columns import DriftMeter
from agentgym.trainers.data.batch import build_batches
from agentgym.trainers.data.columns import column
from agentgym.trainers.data.layout import PaddedRows
from agentgym.trainers.data.row import Row, Span
from agentgym.trainers.data.weighted_row import WeightedRow
from agentgym.trainers.distributed.ranks import Ranks
from agentgym.trainers.models.head import trunk_of
from agentgym.trainers.sft.rows import digest_of


def test_the_digest_of_demonstrations_is_that_of_earlier_runs() -> None:
    """Their ``demos/rows.json`` has the digest of all ids and of all weights, that of the first token too."""
    ids, weights = (4, 5, 6, 7), np.array([0.5, 0.0, 0.0, 1.0], np.float32)
    row = WeightedRow(ids, weights, [False, True, False, True])
    expected = hashlib.blake2b(np.array(ids, np.int64).tobytes() + weights.tobytes(), digest_size=16)
    assert digest_of([row]) == expected.hexdigest()
    assert row.positions.tolist() == [0, 1, 3] and row.in_batch.tolist() == [1, 2], "nothing predicts the first token"


def test_responses_of_an_earlier_checkpoint_are_read() -> None:
    saved = {"task": [{"token_ids": (1, 2, 3), "at": (1, 2), "logprobs": (-1.0, -2.5)}]}
    meter = DriftMeter(4, Ranks())
    meter.load_state_dict(saved)
    assert meter.state_dict() == saved


def test_a_users_column_may_have_the_name_of_a_field() -> None:
    @column("target", unit="token", phase="record")
    def target(turn: Any) -> list[float]:
        return [0.25 for _ in turn.completion.token_ids]

    row = sample(2, 2)
    (batch,) = build_batches([Row.of(row.token_ids, [0, 0, 1, 1], {"target": [0, 0, 0.25, 0.5]})])
    assert batch["target"].tolist() == [0.25, 0.5]
    assert batch.target.tolist() == list(row.token_ids[2:])
    with pytest.raises(ConfigError, match="column 'is_trained' is one of the trainer's own"):
        column("is_trained", unit="token")(target)


def test_a_span_continues_the_tokens_that_it_names(small_model: Any) -> None:
    """The row is ``5 6 7`` with the answers ``8 9`` after ``5 6`` and ``4`` after ``5 6 7``."""
    packed = Row(
        token_ids=(5, 6, 7, 8, 4), positions=np.array([2, 4, 3]), targets=np.array([8, 9, 4]),
        spans=(Span(2, 1), Span(3, 1)),
    )  # fmt: skip
    apart = [
        Row(token_ids=(5, 6, 8, 9), positions=np.array([2, 3])),
        Row(token_ids=(5, 6, 7, 4), positions=np.array([3])),
    ]
    (one,), (other,) = build_batches([packed]), build_batches(apart)
    assert isinstance(one.layout, PaddedRows) and one.layout.spans
    assert one.target.tolist() == other.target.tolist() == [8, 9, 4]
    states = [batch.states(trunk_of(small_model)) for batch in (one, other)]
    np.testing.assert_allclose(states[0].detach().numpy(), states[1].detach().numpy(), atol=1e-5)
