"""SmolLM2-135M as tests train it: in bfloat16 where that is faster, which is half the time."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.trainers.models.precision import multiplies_bfloat16

IN_BFLOAT16 = ("engine.dtype=bfloat16", "loss.precision=bfloat16") if multiplies_bfloat16() else ()
"""Settings of a run; none where the processor has no instructions for it."""


def assert_the_policy_was_sampled(row: Mapping[str, float]) -> None:
    """Assert that a step's log-probabilities from engine and trainer are those of one model.

    In bfloat16 the mean over the step's tokens is compared: one unlikely token among a hundred may differ by more
    than 0.5, since logits of 30 are 0.125 apart.
    """
    if IN_BFLOAT16:
        assert row["logprob_gap_mean"] < 0.1, row
    else:
        assert row["logprob_gap_max"] < 1e-3, row
