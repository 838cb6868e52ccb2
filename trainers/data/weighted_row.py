"""Training rows for a plain next-token loss: of demonstrations, and of auxiliary losses."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np
from numpy.typing import ArrayLike

from agentgym.errors import error_text
from agentgym.media import has_media
from agentgym.trainers.data.row import Row


def WeightedRow(token_ids: Sequence[int], weights: ArrayLike, is_sampled: ArrayLike) -> Row:
    """Return a row of ``T`` tokens with the columns ``loss_weight`` and ``is_sampled``.

    Args:
        token_ids: the tokens.
        weights: ``[T]`` loss weight of each token. The first is never used, because nothing predicts the first token,
            and those of images are 0.
        is_sampled: ``[T]`` True for the tokens of the assistant's messages, which a policy samples in a rollout.

    Raises:
        ValueError: the lengths differ, or something is not a number.
    """
    try:
        ids = tuple(map(index, token_ids))
        of_token, marks = np.array(weights, dtype=np.float32), np.array(is_sampled, dtype=np.bool_)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a row is not made of numbers: {error_text(error)}") from error
    if of_token.shape != (len(ids),) or marks.shape != of_token.shape:
        raise ValueError(
            f"a row has {len(ids)} tokens, {of_token.size} weights and {marks.size} marks of sampled tokens, expected "
            "as many of each"
        )
    if has_media(ids):  # nothing predicts pixels
        is_pixels = np.asarray(ids) < 0
        of_token[is_pixels], marks[is_pixels] = 0, False
    return Row.of(ids, (of_token != 0) | marks, {"loss_weight": of_token, "is_sampled": marks})


def is_taught(row: Row) -> bool:
    """Return True if a token has a weight. A row without one has no loss, and a batch of such rows no mean."""
    return bool(row.columns["loss_weight"][row.in_batch].any())
