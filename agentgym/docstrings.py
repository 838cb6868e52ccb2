"""Docstrings of tools: the description, and what is said of each parameter in Google's, NumPy's or Sphinx's form.

Nothing that an author says of a tool is dropped but the sections for readers of the code, such as ``Returns:``. What
looks like the description of a parameter and names none stays in the description of the tool.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Literal

_PARAMETERS: Final = r"(?:(?:other|keyword)\s+)?(?:args|arguments|params|parameters)"
_OTHERS: Final = r"Returns?|Yields?|Raises|Examples?|Notes?"
_TITLE: Final = re.compile(rf"(?P<parameters>(?i:{_PARAMETERS}))\s*[:：]|(?:{_OTHERS})\s*[:：]")
_ONE_LINE: Final = re.compile(r"(?:Returns?|Yields?|Raises)\s*[:：].")
_UNDERLINED: Final = re.compile(rf"(?P<parameters>(?i:{_PARAMETERS}))|(?:{_OTHERS}|See Also|References)")
_UNDERLINE: Final = re.compile(r"\s*(?:-{3,}|={3,})\s*")
_FIELD: Final = re.compile(r"\s*[:@](?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*[:：]")
_OTHER_FIELD: Final = re.compile(r"\s*[:@](?:type|returns?|rtype|raises?|yields?|except|exception)\b[^:]*:")
_NAME: Final = r"[*`]{0,4}(\w+)[*`]{0,4}"
_NAMES: Final = re.compile(rf"(?:[-*•+]\s+)?({_NAME}(?:\s*,\s*{_NAME})*)\s*")
_SEPARATOR: Final = re.compile(r"[:：]\s*|[-–—]+\s|$")
_UNKNOWN: Final = re.compile(rf"(?:[-*•+]\s+)?{_NAME}\s*(?:\(.*\)\s*)?[:：]")

_Kind = Literal["text", "google", "numpy", "field", "other"]


def split_docstring(doc: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the description in a docstring, and the descriptions of the parameters.

    Args:
        doc: the docstring without indentation, as ``inspect.getdoc`` returns it.
        names: the function's parameters.

    Example:
        >>> split_docstring("Go.\\n\\nArgs:\\n  to (str) : where\\n    to go\\n  by: no parameter", ["to"])
        ('Go. by: no parameter', {'to': 'where to go'})
    """
    description: list[str] = []
    texts: dict[str, list[str]] = {}
    for kind, lines in _parts(doc.expandtabs().split("\n"), names):
        if kind == "text":
            description += lines
        elif kind != "other":
            for described, text in _entries(kind, lines, names):
                for name in described:
                    texts.setdefault(name, []).append(text)
                if not described:
                    description.append(text)
    parameters = {name: " ".join(" ".join(text).split()) for name, text in texts.items()}
    return " ".join(" ".join(description).split()), {name: text for name, text in parameters.items() if text}


def _parts(lines: Sequence[str], names: Collection[str]) -> Iterator[tuple[_Kind, Sequence[str]]]:
    """Yield the parts of a docstring in order, sections without their titles."""
    at = 0
    while at < len(lines):
        kind, start = _begins(lines, at)
        stop = start if kind != "text" else at + 1
        while kind != "text" and stop < len(lines) and not _ends(kind, lines, at, stop, names):
            stop += 1
        yield kind, lines[at if kind in ("text", "field") else start : stop]
        at = stop


def _begins(lines: Sequence[str], at: int) -> tuple[_Kind, int]:
    """Return the kind of the part that begins at a line, and where its body begins."""
    line = lines[at]
    if at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]) and (found := _UNDERLINED.fullmatch(line.strip())):
        return ("numpy" if found["parameters"] else "other"), at + 2
    found = _TITLE.match(line.strip())
    is_alone = found is not None and found.end() == len(line.strip())
    if found is not None and is_alone and found["parameters"]:
        return "google", at + 1
    if at and found is not None and (is_alone or _ONE_LINE.match(line.strip())):
        return "other", at + 1
    if _FIELD.match(line):
        return "field", at + 1
    return ("other" if at and _OTHER_FIELD.match(line) else "text"), at + 1


def _ends(kind: _Kind, lines: Sequence[str], title: int, at: int, names: Collection[str]) -> bool:
    """Return True if the part whose title or first line is given has ended before a line."""
    line = lines[at]
    if _UNDERLINE.fullmatch(lines[title + 1] if title + 1 < len(lines) else ""):  # to the next title like it
        return at + 1 < len(lines) and at > title + 1 and _UNDERLINE.fullmatch(lines[at + 1]) is not None
    if not line.strip() or _indent(line) > _indent(lines[title]):
        return False
    if _begins(lines, at)[0] != "text":
        return True
    if kind == "google":
        return _head(line.strip(), names) is None
    is_title = _TITLE.fullmatch(lines[title].strip()) is not None
    return is_title or not lines[at - 1].strip()  # a text on the line of its title goes on to the next blank line


def _entries(kind: _Kind, lines: Sequence[str], names: Collection[str]) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the parameters and the text of each entry; an entry that describes none has no parameters."""
    if kind == "field":
        found = _FIELD.match(lines[0])
        assert found is not None
        text = "\n".join([lines[0][found.end() :], *lines[1:]])
        yield ([found[1]], text) if found[1] in names else ([], f"{found[1]}: {text}")
        return
    outer = min((_indent(line) for line in lines if line.strip()), default=0)
    described: Sequence[str] = ()
    body: list[str] = []
    for line in lines:
        begun = _head(line.strip(), names) if line.strip() and _indent(line) <= outer else None
        is_other = _indent(line) <= outer and (
            not body or not body[-1] or kind == "numpy" or _UNKNOWN.match(line.strip()) is not None
        )
        if not line.strip() or (begun is None and not is_other):
            body.append(line.strip())
            continue
        yield described, _text(kind, described, body)
        described, first = begun or ((), line.strip())
        body = [first]
    yield described, _text(kind, described, body)


def _text(kind: _Kind, described: Sequence[str], body: Sequence[str]) -> str:
    """Return the text of an entry. In NumPy's form a type precedes it, which the function has already."""
    is_below = kind == "numpy" and described and any(body[1:])
    return "\n".join(body[1:] if is_below else body)


def _head(line: str, names: Collection[str]) -> tuple[Sequence[str], str] | None:
    """Return the parameters that a line begins to describe, and the text after them; None for other lines."""
    found = _NAMES.match(line)
    described = re.findall(r"\w+", found[1]) if found else []
    if found is None or not all(name in names for name in described):
        return None
    rest = line[found.end() :]
    rest = rest[_closing(rest) :].lstrip() if rest.startswith(("(", "[", "{", "<")) else rest
    separator = _SEPARATOR.match(rest)
    return (described, rest[separator.end() :]) if separator else None


def _closing(text: str) -> int:
    """Return the end of the brackets with which a text begins; 0 if they stay open."""
    depth = 0
    for at, character in enumerate(text):
        depth += (character in "([{<") - (character in ")]}>")
        if depth == 0:
            return at + 1
    return 0


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
