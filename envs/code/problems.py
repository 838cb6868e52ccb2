"""Repair problems of all sources and their splits."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from agentgym.canonical import digest
from agentgym.envs.splits import is_byte_in_split


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairProblem:
    """A repair problem: incomplete or faulty files, and tests of a correct repair.

    Paths are relative to the workspace; contents are text.
    """

    statement: str
    """Text for the agent."""
    files: dict[str, str]
    """Initial workspace, including public tests."""
    hidden_tests: dict[str, str]
    """``unittest`` modules that the agent never sees."""
    solution: dict[str, str]
    """Changed files of a correct repair."""
    public_tests: tuple[str, ...] = ()
    """Paths in ``files`` that are tests."""
    num_passing_at_start: int | None = None
    """Number of hidden tests that pass at the start; None if unknown."""


def is_in_split(content: object, split: str) -> bool:
    """Return True if a problem with this content belongs to a split, which depends only on the content.

    Raises:
        UnknownNameError: there is no such split.

    Example:
        >>> [split for split in ("train", "valid", "test") if is_in_split("def f(a): ...", split)]
        ['train']
    """
    return is_byte_in_split(int(digest(content)[:2], 16), split)


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit that replaces the only occurrence of ``old`` in a file by ``new``."""

    old: str
    new: str


def edits(before: str, after: str) -> tuple[Edit, ...]:
    """Return edits that convert one text to another in order. Each ``old`` is unique when its edit is applied.

    Example:
        >>> edits("def f(a, b):\\n    return a - b\\n", "def f(a, b):\\n    return a + b\\n")
        (Edit(old='return a - b', new='return a + b'),)
    """
    made: list[Edit] = []
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    text = before
    # from the last change to the first, so that line numbers of the remaining ones stay valid
    for tag, start, end, new_start, new_end in reversed(difflib.SequenceMatcher(None, old, new, False).get_opcodes()):
        if tag != "equal":
            edit = _unique(text, (start, end), new[new_start:new_end])
            made.append(edit)
            text = text.replace(edit.old, edit.new)
    return tuple(made)


def _unique(text: str, span: tuple[int, int], new: list[str]) -> Edit:
    lines = text.splitlines(keepends=True)
    start, end = span
    old = lines[start:end]
    if len(old) == len(new) == 1:
        bare = Edit(old[0].strip(), new[0].strip())
        is_same_margin = old[0].replace(bare.old, "") == new[0].replace(bare.new, "")
        if bare.old and is_same_margin and text.count(bare.old) == 1:
            return bare
    while not (wanted := "".join(lines[start:end])) or text.count(wanted) != 1:
        if start > 0:  # extend by the line above, else the line below
            start -= 1
            new = [lines[start], *new]
        elif end < len(lines):
            new = [*new, lines[end]]
            end += 1
        else:
            break  # an empty file, or one with only equal lines
    return Edit(wanted, "".join(new))
