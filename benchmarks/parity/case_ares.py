"""ARES compared with its authors' reward function: the score of a number of exploring tokens."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from released import Case, Release, gap, load

from agentgym.credit.shapers.ares import BANDS, entropy_score

RELEASE = Release("shawn0728/ARES", "146620e")
FILE = "examples/reward_function/aepo.py"
HELPERS = ("_huber_penalty", "_sigmoid_saturate", "_margin_from_target", "format_reward", "accuracy_reward")


def largest_gap(folder: Path, rng: np.random.Generator) -> float:
    """Compare ten answers of all difficulties, with numbers from 0 to above the target."""
    namespace: dict[str, Any] = {"re": re, "math": math, "Any": Any, "Dict": dict, "List": list}
    namespace |= {"extract_boxed_content": lambda text: text, "grade_answer": lambda one, other: one == other}
    scope = load(folder / FILE, *HELPERS, "compute_score", namespace=namespace)
    alpha = float(rng.choice([0.0, 0.3, 0.5, 2.0]))
    ours, asked = [], []
    for _ in range(10):
        target, is_right = float(rng.choice([0.0, 1.0, rng.uniform(0, 60)])), bool(rng.integers(2))
        number, band = float(rng.integers(0, 90)), str(rng.choice(list(BANDS)))
        ours.append(entropy_score(number, target, band, is_right, alpha))
        asked.append(
            {
                **{"response": "1", "ground_truth": "1" if is_right else "2", "difficulty": band},
                **{"high_entropy_token_num": number, "target_high_entropy_token_num": target, "alpha_entropy": alpha},
            }
        )
    theirs = [one["high_entropy_token_num_score"] for one in scope["compute_score"](asked)]
    return gap(ours, theirs)


CASES = (Case(component="ares", release=RELEASE, file=FILE, largest_gap=largest_gap),)
