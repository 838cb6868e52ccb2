"""Environments on the command line: a reference and arguments as ``key=value``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from agentgym.errors import UsageError
from agentgym.settings import read_pairs

EnvArgument = Annotated[str, typer.Argument(metavar="ENV", help="An id, module:Id, or path/to/file.py:Id.")]
KwargsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the environment's class.")
]


def parse_pairs(pairs: Sequence[str]) -> dict[str, object]:
    """Parse ``key=value`` pairs. A value that is valid JSON is decoded; any other value stays text.

    Raises:
        UsageError: a pair has no equals sign, or a key is given twice.

    Example:
        >>> parse_pairs(["num_objects=3", "name=kitchen"])
        {'num_objects': 3, 'name': 'kitchen'}
    """
    values = read_pairs(pairs)
    for pair, key in zip(pairs, values, strict=True):
        if not key.isidentifier():
            group, _, rest = key.rpartition(".")
            meant = f"; did you mean {pair.removeprefix(f'{group}.')}?" if group and rest.isidentifier() else ""
            raise UsageError(f"expected key=value with a plain name as key, got {pair!r}{meant}")
    return values
