"""SmolLM2-135M as tests train it: in bfloat16 where that is faster, which is half the time."""

from __future__ import annotations

from agentgym.trainers.models.precision import multiplies_bfloat16

IN_BFLOAT16 = ("engine.dtype=bfloat16", "loss.precision=bfloat16") if multiplies_bfloat16() else ()
"""Settings of a run; none where the processor has no instructions for it."""
MAX_GAP = 0.5 if IN_BFLOAT16 else 1e-3
"""Largest difference between the log-probabilities of engine and trainer with :data:`IN_BFLOAT16`."""
