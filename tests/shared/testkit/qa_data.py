"""Paths of real questions and passages, for tests that need them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("AGENTGYM_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
QA = SHARED / "qa"
HOTPOTQA, MUSIQUE = QA / "hotpotqa_train.json", QA / "musique_train.json"

needs_hotpotqa = pytest.mark.skipif(not HOTPOTQA.is_file(), reason="needs HotpotQA's questions in AGENTGYM_SHARED_DATA")
needs_musique = pytest.mark.skipif(not MUSIQUE.is_file(), reason="needs MuSiQue's questions in AGENTGYM_SHARED_DATA")
