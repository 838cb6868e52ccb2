"""The trainer's log-probabilities and entropies of sampled tokens, stored beside the record of a step.

One gzip file of JSON lines per training step, one line per trained turn. They come from the forward pass of training,
so they cost nothing extra. The engine's log-probabilities are in the record itself.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError

Key = tuple[int, int, int]
"""Ordinal of the group, index of the trajectory in the group, index of the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScores:
    """Scores of one turn's sampled tokens; None for tokens that were not trained."""

    ordinal: int
    member: int
    turn: int
    logprobs: tuple[float | None, ...]
    """Log-probabilities of the policy before the step's first update, at the sampling temperature."""
    entropies: tuple[float | None, ...]
    """Entropies in nats of the distribution that the token was trained with."""

    @property
    def key(self) -> Key:
        """Return the key of the turn in its step."""
        return self.ordinal, self.member, self.turn


def scores_path(run_dir: Path, step: int) -> Path:
    """Return the path of a training step's scores."""
    return run_dir / "rollouts" / f"scores-{step:06d}.jsonl.gz"


def write_scores(path: Path, scores: Iterable[TurnScores]) -> None:
    """Write a step's scores. The file appears only when it is complete on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as out:
        for one in scores:
            out.write(json.dumps(asdict(one), separators=(",", ":")).encode() + b"\n")
    os.replace(partial, path)


def read_scores(run_dir: Path, step: int) -> dict[Key, TurnScores]:
    """Read a step's scores; empty if there is no file, as for steps of earlier versions.

    Raises:
        CorruptDataError: the file cannot be read.
    """
    path = scores_path(run_dir, step)
    if not path.is_file():
        return {}
    found: dict[Key, TurnScores] = {}
    try:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                values = read_json(line)
                columns = {name: tuple(values[name]) for name in ("logprobs", "entropies")}
                one = TurnScores(**{**values, **columns})
                found[one.key] = one
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{path} cannot be read ({error}); move it away to leave the scores out") from error
    return found
