"""A file of questions about pictures of our own."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

from agentgym.tools.pictures import png_of


def write_picture_questions(folder: Path, num_rows: int = 60) -> Path:
    """Write questions about the grey of a picture; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for grey in range(num_rows):
        png = png_of(np.full((60, 80, 3), 4 * grey, np.uint8))
        rows.append({"question": "How bright is it?", "answer": grey, "image": base64.b64encode(png).decode()})
    path = folder / "questions.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path
