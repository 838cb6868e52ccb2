"""Dockerfiles whose effect needs no build: the image, the folder, variables and copied files.

Lines are joined and variables expanded as Docker does it. :data:`INSTRUCTIONS` is the table of what is read; anything
else is refused with file and line.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from agentgym.envs.code.file_tree import Entry, read_entry, read_tree
from agentgym.errors import CorruptDataError, UsageError

Treatment = Literal["read", "no effect", "build"]

INSTRUCTIONS: Final[Mapping[str, Treatment]] = {
    **dict.fromkeys(("FROM", "ARG", "ENV", "WORKDIR", "COPY", "ADD"), "read"),
    **dict.fromkeys(("CMD", "EXPOSE", "LABEL", "MAINTAINER", "SHELL", "STOPSIGNAL", "USER"), "no effect"),
    **dict.fromkeys(("ENTRYPOINT", "HEALTHCHECK", "ONBUILD", "RUN", "VOLUME"), "build"),
}
"""Treatment of each instruction. Those of the last row need an image that was built from the Dockerfile."""

_SHELLS: Final = ("", "[]", '["/bin/bash"]', '["/bin/sh"]', '["bash"]', '["sh"]')
"""Values of ENTRYPOINT that start nothing else."""
_ARCHIVE: Final = re.compile(r"\.(tar(\.\w+)?|tgz|tbz2?|txz)$")
_NAME: Final = re.compile(r"\w+")
_OF_IMAGE: Final = re.compile("\0(\\w+)(?:(:[-+])([^\0]*))?\0")
_HEREDOC: Final = re.compile(r"<<-?[\"']?\w")


class NeedsBuildError(UsageError):
    """An instruction takes effect only in a built image."""


@dataclass(slots=True, kw_only=True)
class Dockerfile:
    """Effects of a Dockerfile, at its end.

    Values of ``env`` may name variables of the image, see :func:`with_image`.
    """

    image: str | None = None
    workdir: str = ""
    """Absolute path; empty if no instruction sets it."""
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, Entry] = field(default_factory=dict)
    """Copied files by absolute path."""
    args: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Line:
    """An instruction with its place in the file."""

    path: Path
    number: int
    word: str
    rest: str

    def error(self, reason: str) -> CorruptDataError:
        return CorruptDataError(f"{self.path}, line {self.number}: {self.word}: {reason}")

    def needs_build(self, reason: str) -> NeedsBuildError:
        return NeedsBuildError(f"line {self.number}: {self.word} {reason}".rstrip())


def read_dockerfile(path: Path, *, is_built: bool) -> Dockerfile:
    """Read a Dockerfile.

    Args:
        path: the file; its folder is the build's context.
        is_built: True if its image exists, so that only the folder and the variables matter.

    Raises:
        NeedsBuildError: an instruction takes effect only in a built image.
        CorruptDataError: the file has an unknown instruction or a wrong value; the error names the line.
    """
    now, stages, global_args = Dockerfile(), dict[str, Dockerfile](), dict[str, str]()
    has_started = False
    for line in _lines(path):
        if line.word == "FROM":
            has_started, now = True, _stage(line, stages, global_args, is_built)
        elif not has_started and line.word != "ARG":
            raise line.error("comes before FROM")
        elif line.word == "ARG":
            _take_args(line, now, global_args, has_started)
        elif line.word == "ENV":
            now.env |= _pairs(line, now)
        elif line.word == "WORKDIR":
            now.workdir = _workdir(line, now)
        elif line.word in ("COPY", "ADD") and not is_built:
            _copy(line, now)
        elif INSTRUCTIONS[line.word] == "build" and not is_built and not _starts_nothing(line):
            raise line.needs_build(line.rest[:60])
    if not has_started:
        raise CorruptDataError(f"{path} has no FROM")
    return now


def _lines(path: Path) -> Iterator[_Line]:
    """Yield the instructions of a file, with continued lines joined and comments left out.

    Raises:
        CorruptDataError: a line names an unknown instruction, or the file is not UTF-8.
        NeedsBuildError: an instruction has a here-document.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is not UTF-8: {error}") from error
    if re.match(r"(\s*#.*\n)*\s*#\s*escape\s*=\s*`", text, re.IGNORECASE):
        raise CorruptDataError(f"{path}, line 1: only the escape character \\ is read")
    start, joined = 0, ""
    for number, raw in enumerate([*text.split("\n"), ""], 1):
        content = raw.strip()
        is_end = number > text.count("\n") + 1
        if content.startswith("#") or (not content and not is_end):
            continue  # Docker leaves out comments and blank lines between continued lines, too
        start = start or number
        joined += content.removesuffix("\\")
        if not joined or (content.endswith("\\") and not is_end):
            continue
        word, _, rest = joined.replace("\t", " ", 1).partition(" ")
        line = _Line(path, start, word.upper(), rest.strip())
        start, joined = 0, ""
        if line.word not in INSTRUCTIONS:
            raise line.error(f"is no instruction of a Dockerfile; known: {', '.join(INSTRUCTIONS)}")
        if line.word in ("RUN", "COPY", "ADD") and _HEREDOC.search(line.rest):
            raise line.needs_build("with a here-document")
        yield line


def _starts_nothing(line: _Line) -> bool:
    is_shell = line.word == "ENTRYPOINT" and line.rest.replace(" ", "") in _SHELLS
    return is_shell or (line.word, line.rest.upper()) == ("HEALTHCHECK", "NONE")


def _stage(line: _Line, stages: dict[str, Dockerfile], args: Mapping[str, str], is_built: bool) -> Dockerfile:
    words = [word for word in line.rest.split() if not word.startswith("--platform=")]
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS") or words[0].startswith("--"):
        raise line.error(f"expected an image, or an image AS a name, got {line.rest!r}")
    image = with_image(_expanded(line, words[0], Dockerfile(args=dict(args))), {})
    if not image and not is_built:
        raise line.error(f"{words[0]} has no value")
    before = stages.get(image.lower())
    made = Dockerfile(image=image) if before is None else replace(before, env={**before.env}, files={**before.files})
    made.args = {}
    if len(words) == 3:
        stages[words[2].lower()] = made
    return made


def _workdir(line: _Line, now: Dockerfile) -> str:
    name = _expanded(line, line.rest, now)
    if not name or "\0" in name:
        raise line.error(f"expected a folder that depends on no variable of the image, got {line.rest!r}")
    return str(_clean(PurePosixPath("/", now.workdir, name)))


def _take_args(line: _Line, now: Dockerfile, global_args: dict[str, str], has_started: bool) -> None:
    scope = now if has_started else Dockerfile(args=global_args)
    for name, value in _assignments(line, scope):
        if has_started:
            now.args[name] = global_args.get(name, "") if value is None else value
        else:
            global_args[name] = value or ""


def _pairs(line: _Line, now: Dockerfile) -> dict[str, str]:
    first, _, rest = line.rest.partition(" ")
    if "=" not in first:  # the old form: ENV name value with spaces
        if not rest.strip():
            raise line.error("expected NAME=VALUE")
        return {first: _expanded(line, rest.strip(), now)}
    found = dict[str, str]()
    for name, value in _assignments(line, now):
        if value is None:
            raise line.error(f"expected NAME=VALUE, got {name!r}")
        found[name] = value
    return found


def _assignments(line: _Line, now: Dockerfile) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for word in _split(line.rest):
        name, is_given, value = word.partition("=")
        found.append((_unquoted(name), _expanded(line, value, now) if is_given else None))
    return found


def _split(text: str) -> list[str]:
    """Return the words of a text, with their quotes and backslashes."""
    return re.findall(r"""(?:[^\s"'\\]|\\.|"(?:\\.|[^"\\])*"|'[^']*'|["'\\])+""", text, re.DOTALL)


def _unquoted(text: str) -> str:
    return text.strip("\"'")


def _expanded(line: _Line, text: str, now: Dockerfile) -> str:
    """Return a word without quotes and with its variables replaced, as Docker does it."""
    pieces: list[str] = []
    quote, at = "", 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'" and at + 1 < len(text):
            kept = "\\" if quote and text[at + 1] not in '"$\\' else ""
            pieces.append(kept + text[at + 1])
            at += 2
        elif char in "\"'" and quote in ("", char):
            quote = "" if quote else char
            at += 1
        elif char == "$" and quote != "'":
            value, at = _variable(line, text, at, now)
            pieces.append(value)
        else:
            pieces.append(char)
            at += 1
    return "".join(pieces)


def _variable(line: _Line, text: str, at: int, now: Dockerfile) -> tuple[str, int]:
    """Return the value of the variable at a ``$``, and the position after it."""
    if text.startswith("${", at):
        end = text.find("}", at)
        found = re.fullmatch(r"(\w+)(?:(:[-+])(.*))?", text[at + 2 : end], re.DOTALL) if end > 0 else None
        if found is None:
            raise line.error(
                f"{text[at:]!r}: of Docker's forms, $NAME, ${{NAME}}, ${{NAME:-x}} and ${{NAME:+x}} are read"
            )
        name, operator, word = found[1], found[2], found[3]
        end += 1
    elif plain := _NAME.match(text, at + 1):
        name, operator, word, end = plain[0], None, "", plain.end()
    else:
        return "$", at + 1
    word = _expanded(line, word, now) if word else ""
    value = now.env.get(name, now.args.get(name))
    if value is None:  # only the image knows it
        return f"\0{name}{operator or ''}{word}\0", end
    return _chosen(value, operator, word), end


def _chosen(value: str, operator: str | None, word: str) -> str:
    """Return the value of ``${NAME:-word}`` and the like."""
    if operator == ":-":
        return value or word
    return word if operator and value else "" if operator else value


def with_image(text: str, variables: Mapping[str, str]) -> str:
    """Replace the variables of the image in a value of :attr:`Dockerfile.env`.

    Example:
        >>> with_image("/app/bin:\\0PATH\\0", {"PATH": "/bin"})
        '/app/bin:/bin'
    """
    return _OF_IMAGE.sub(lambda found: _chosen(variables.get(found[1], ""), found[2], found[3] or ""), text)


# ---------------------------------------------------------------------------------------------------- copied files


def _copy(line: _Line, now: Dockerfile) -> None:
    """Add the files of a COPY or ADD."""
    mode, words = None, line.rest
    while flag := re.match(r"--(\w+)(?:=(\S+))?\s+", words):
        if flag[1] == "chmod" and re.fullmatch(r"[0-7]{3,4}", flag[2] or ""):
            mode = int(flag[2], 8)
        elif flag[1] not in ("chown", "link"):  # there is one user, and one layer
            raise line.needs_build(line.rest)
        words = words[flag.end() :]
    try:
        names = json.loads(words) if words.startswith("[") else _split(words)
        *sources, target = (_expanded(line, name, now) for name in names)
    except (ValueError, TypeError):
        raise line.error(f"expected files and a target, got {line.rest!r}") from None
    if not sources or any("\0" in name for name in (*sources, target)):
        raise line.error(f"the files and the target must be known, got {line.rest!r}")
    is_folder = target.endswith("/") or target in (".", "..") or target.endswith("/.") or len(sources) > 1
    place = _clean(PurePosixPath("/", now.workdir, target))
    for source in sources:
        if "://" in source or source.startswith("git@") or (line.word == "ADD" and _ARCHIVE.search(source)):
            raise line.needs_build(line.rest)
        for path, made in _found(line, source, is_folder or _has_pattern(source)):
            entry = made if mode is None or made.link else replace(made, mode=mode)
            now.files[str(place / path) if path else str(place)] = entry


def _found(line: _Line, source: str, is_folder: bool) -> Iterator[tuple[str, Entry]]:
    """Yield the entries that a source stands for, by path below the target; the empty path is the target itself."""
    context = line.path.parent.resolve()
    is_ignored = _ignored(context)
    pattern = str(_clean(PurePosixPath("/", source)))[1:]
    names = sorted(glob.glob(pattern, root_dir=context, include_hidden=True)) if _has_pattern(source) else [pattern]
    num_found = 0
    for name in names:
        path = context / name
        real = path.resolve()
        is_hidden = bool(name) and is_ignored(name)
        if not real.is_relative_to(context) or not real.exists() or (is_hidden and not real.is_dir()):
            continue
        if real.is_dir():
            tree = read_tree(real)
            kept = {below: entry for below, entry in tree.items() if not is_ignored(f"{name}/{below}".lstrip("/"))}
            num_found += bool(kept) or not is_hidden
            yield from kept.items()
        else:
            num_found += 1
            yield (path.name if is_folder else ""), read_entry(real)
    if not num_found:
        raise line.error(f"{source}: there is no such file in {context}")


def _has_pattern(source: str) -> bool:
    return any(char in source for char in "*?[")


def _clean(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts[1:]:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
    return PurePosixPath("/", *parts)


def _ignored(context: Path) -> Callable[[str], bool]:
    """Return a function that is True for paths that ``.dockerignore`` leaves out of the context."""
    file = next(
        (context / name for name in ("Dockerfile.dockerignore", ".dockerignore") if (context / name).exists()), None
    )
    rules: list[tuple[bool, re.Pattern[str]]] = []
    try:
        text = file.read_text(encoding="utf-8-sig") if file else ""
    except (UnicodeDecodeError, OSError) as error:
        raise CorruptDataError(f"{file} is not UTF-8 text: {error}") from error
    for number, raw in enumerate(text.split("\n"), 1):
        rule = raw.strip()
        if not rule or raw.startswith("#"):
            continue
        pattern = str(_clean(PurePosixPath("/", rule.removeprefix("!").strip())))[1:]
        try:
            rules.append((not rule.startswith("!"), _pattern_of(pattern)))
        except re.error as error:
            raise CorruptDataError(f"{file}, line {number}: {rule!r} is no pattern: {error}") from error

    def is_ignored(path: str) -> bool:
        found = False
        for is_rule_out, pattern in rules:  # the last rule that matches decides
            if pattern.fullmatch(path):
                found = is_rule_out
        return found

    return is_ignored


def _pattern_of(rule: str) -> re.Pattern[str]:
    """Return the paths that a rule of ``.dockerignore`` matches: the rule's own, and those below them."""
    pieces = re.findall(r"\*\*/?|\*|\?|\[[^]]*\]|\\.|.", rule)
    made = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(
        made.get(piece) or (piece if piece[0] == "[" and len(piece) > 1 else re.escape(piece[-1])) for piece in pieces
    )
    return re.compile(f"{text}(?:/.*)?", re.DOTALL)
