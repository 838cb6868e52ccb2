"""Makes the data that compose.yaml serves and asks about unless told otherwise: a small made-up world, from a seed.

    python deploy/example/make.py [FOLDER]

``corpus.jsonl`` is for the search server, ``questions.json`` (as NQ-open has them) for ``agentgym/SearchQA-v0``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agentgym.envs.search.world import Difficulty, World

WORLD = Difficulty(
    num_pages=120,
    hops=(1,),
    aliases=0.0,
    stale_pages=0.0,
    distractors=0.0,
    fillers=0,
    vocabulary=16,
    relations=("author", "mayor"),
)
NUM_DRAWS = 200
"""Questions that are drawn; each is kept once."""


def make(folder: Path) -> None:
    """Write both files."""
    world = World(WORLD, seed=0)
    pages = [{"id": page.title, "title": page.title, "text": page.text} for page in world.pages]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages), encoding="utf-8")
    drawn = {question.text: question.answers for question in map(world.question, range(NUM_DRAWS))}
    questions = [{"id": text, "question": text, "answer": list(answers)} for text, answers in sorted(drawn.items())]
    lines = ",\n".join(json.dumps(question) for question in questions)
    (folder / "questions.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
