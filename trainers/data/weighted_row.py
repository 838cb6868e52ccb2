"""Training rows for a plain next-token loss: of demonstrations, and of auxiliary losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentgym.credit.table import Bools


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRow:
    """One training row of ``T`` tokens; all columns have length ``T``."""

    token_ids: tuple[int, ...]
    weights: NDArray[np.float32]
    """Loss weight of each token. The first is never used, because nothing predicts the first token."""
    is_sampled: Bools
    """True for the tokens of the assistant's messages, which a policy samples in a rollout."""

    @property
    def is_taught(self) -> bool:
        """True if a token has a weight. A row without one has no loss, and a batch of such rows no mean."""
        return bool(self.weights[1:].any())
