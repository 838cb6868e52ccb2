"""ReMix: groups of the last steps are trained again beside the fresh ones, until training returns to fresh data.

Source: "Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large Language Model" (its release
has no code). Its three parts are this replay with several updates a step (``loss.num_epochs``), the regulariser
``kl_convex``, and the restart from the policy so far (``kl_convex.restart_at``). From there on schedules set ``share``
to 0 and the epochs to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import replay
from agentgym.settings import Count, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class RemixOptions(Options):
    """Settings of ReMix's replay."""

    kind: str = "remix"
    share: Annotated[float, Range(at_least=0, below=1)] = 0.4
    """Share of replayed groups among those that a step trains. The value is ours."""
    window: Count = 4
    """Steps whose groups may be trained again. The value is ours."""

    off_at_0 = "share"


@replay(
    "remix",
    paper="Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large Language Model",
    status="experimental",
    limits="share and window are ours; trackers of credit (spo, rae) count a replayed group again",
    test="tests/trainers/test_remix_training.py",
)
def remix(group_ages: Sequence[int], num_fresh: int, rng: np.random.Generator, options: RemixOptions) -> list[int]:
    """Return the stored groups that a step trains again, as indices in ascending order.

    Example:
        >>> remix([3, 2, 2, 1], 3, np.random.default_rng(0), RemixOptions(share=0.4))
        [2, 3]
        >>> remix([9, 8], 3, np.random.default_rng(0), RemixOptions())
        []
    """
    young = [at for at, age in enumerate(group_ages) if age <= options.window]
    num = min(len(young), round(num_fresh * options.share / (1 - options.share)))
    return sorted(int(at) for at in rng.choice(young, num, replace=False)) if num else []
