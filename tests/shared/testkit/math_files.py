"""Our own problems in the published file formats of MATH, MATH-500 and AIME."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MATH: dict[str, dict[str, Any]] = {
    "train/algebra/2": {
        "problem": "Solve $2x = 1$ for $x$.",
        "level": "Level 1",
        "type": "Algebra",
        "solution": "Dividing by two gives $x = \\boxed{\\frac{1}{2}}$.",
    },
    "train/algebra/10": {
        "problem": "For which $x$ is $x^2 \\le 9$?",
        "level": "Level 3",
        "type": "Algebra",
        "solution": "The roots are $\\pm 3$, so $x \\in \\boxed{[-3, 3]}$.",
    },
    "test/prealgebra/1": {
        "problem": "What percent of 80 is 20?",
        "level": "Level 2",
        "type": "Prealgebra",
        "solution": "A quarter, $\\frac{20}{80}$, is $\\boxed{25\\%}$.",
    },
    "test/geometry/7": {
        "problem": "How long is the diagonal of a square with sides of 2 cm?",
        "level": "Level 2",
        "type": "Geometry",
        "solution": "By Pythagoras $\\boxed{2\\sqrt{2}\\text{ cm}}$.",
    },
}
"""Problems by path, without ``.json``."""

MATH_500: list[dict[str, Any]] = [
    {
        "problem": "Expand $(a + b)^2$.",
        "solution": "It is $\\boxed{a^2 + 2ab + b^2}$.",
        "answer": "a^2 + 2ab + b^2",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1837.json",
    },
    {
        "problem": "Name the even prime's successor among the primes.",
        "solution": "After 2 comes $\\boxed{3}$.",
        "answer": "3",
        "subject": "Number Theory",
        "level": 2,
        "unique_id": "test/number_theory/5.json",
    },
]

AIME_2024: list[dict[str, Any]] = [
    {"ID": "2024-I-90", "Problem": "Find $3^3 + 6$.", "Solution": "It is 33.", "Answer": 33},
    {"ID": "2024-II-91", "Problem": "Find $10^2 + 4$.", "Solution": "It is 104.", "Answer": 104},
]
AIME_2025: list[dict[str, Any]] = [
    {"problem": "Find $7 \\cdot 10$.", "answer": "70", "id": "0"},
    {"problem": "Find $7^3 + 245$.", "answer": "588", "id": "1"},
]


def write_math(folder: Path) -> Path:
    """Write MATH's folder."""
    for name, row in MATH.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(row))
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
