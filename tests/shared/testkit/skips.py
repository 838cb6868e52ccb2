"""Reasons to skip tests, in one place, so that the same want has the same words."""

from __future__ import annotations

import os

import pytest

from agentgym.sandboxes.process import why_unconfined

KILLED_FROM_OUTSIDE = pytest.mark.skipif(
    os.getuid() != 0,
    reason="needs root: without it code and worker have one user, so a killed worker counts as the code's doing",
)
NO_CONFINEMENT = why_unconfined()
CONFINED = pytest.mark.skipif(
    bool(NO_CONFINEMENT), reason=f"its code would signal all processes of this user: {NO_CONFINEMENT}"
)
"""For tests whose code signals every process that it can."""
