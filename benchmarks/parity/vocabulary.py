"""The vocabulary of gpt-oss as the file that OpenAI's own tools read, from the npm package ``js-tiktoken``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

TOKENIZERS = Path(__file__).resolve().parents[2] / ".tokenizers"
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""Digest of ``o200k_base.tiktoken`` in the package ``tiktoken``."""


def find_vocabulary() -> Path:
    """Return the vocabulary's file; the first call writes it next to the package.

    Raises:
        SystemExit: the package is missing, or its vocabulary is not that of ``tiktoken``.
    """
    package = TOKENIZERS / "js-tiktoken" / "package" / "dist" / "ranks" / "o200k_base.js"
    file = TOKENIZERS / "js-tiktoken" / "o200k_base.tiktoken"
    if file.is_file():
        return file
    if not package.is_file():
        raise SystemExit(f"the vocabulary of gpt-oss is missing ({package}): make tokenizers fetches it")
    script = package.read_text(encoding="utf-8")
    written = _as_tiktoken(json.loads(script[script.index("{") : script.rindex("}") + 1])["bpe_ranks"])
    if hashlib.sha256(written).hexdigest() != SHA256:
        raise SystemExit(f"{package} holds another vocabulary than tiktoken's o200k_base")
    file.write_bytes(written)
    return file


def _as_tiktoken(ranks: str) -> bytes:
    """Return one line for each token from lines of ``! FIRST_RANK TOKEN TOKEN ...``, tokens in base64."""
    lines = []
    for line in ranks.splitlines():
        mark, first, *tokens = line.split(" ")
        if mark == "!":
            lines += [f"{token} {rank}\n" for rank, token in enumerate(tokens, start=int(first))]
    return "".join(lines).encode()
