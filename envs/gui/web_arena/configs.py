"""WebArena's task files: instructions, sites and checks.

Source: "WebArena: A Realistic Web Environment for Building Autonomous Agents"; ``config_files/test.raw.json`` and
``evaluation_harness`` of web-arena-x/webarena (Apache-2.0). Addresses in the file are names such as ``__SHOPPING__``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from agentgym.canonical import digest
from agentgym.envs.rows import read_rows
from agentgym.errors import CorruptDataError, MissingDataError, UsageError

SITES: Final = ("shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map", "homepage")
"""WebArena's names of its sites."""
EVALUATIONS: Final = ("string_match", "url_match", "program_html")
_PLACE: Final = re.compile(r"__([A-Z_]+?)__")
_POST: Final = re.compile(r"^func:reddit_get_post_url\('(.*)'\)$")
_ROLE: Final = re.compile(r"^func:gitlab_get_project_memeber_role\(__page__, '([^']*)'\)$")
_LAST_URL: Final = "__last_url__"


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlCheck:
    """Text that must appear on a page."""

    url: str
    """``last`` for the current page, an address, or one in :data:`_POST`'s form."""
    locator: str
    """JavaScript; empty for the whole page; or a member of a GitLab project, see :func:`member_of`."""
    prepare: tuple[str, ...] = ()
    """JavaScript that is run first."""
    exact: str | None = None
    parts: tuple[str, ...] = ()
    """Texts that must all appear; of alternatives separated by ``|OR|``, one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebArenaTask:
    """A task."""

    id: str
    intent: str
    sites: tuple[str, ...]
    start_urls: tuple[str, ...]
    """First pages, one tab each."""
    storage_state: str = ""
    """Name of the file with the cookies of the login; empty for tasks without a login."""
    exact_answer: str | None = None
    answer_parts: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    """Right addresses; that of the last page must contain one of them."""
    checks: tuple[HtmlCheck, ...] = ()
    grades_answer: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True)
class WebArenaTasks:
    """The tasks that can be played here, and the reasons why others cannot, by id."""

    tasks: Mapping[str, WebArenaTask]
    left_out: Mapping[str, str]


def read_webarena(path: str | Path, addresses: Mapping[str, str]) -> WebArenaTasks:
    """Return the tasks of WebArena's one file (``test.raw.json``), or of a folder with a file for each.

    Args:
        path: the file or folder.
        addresses: addresses of sites, by WebArena's names: ``{"shopping": "http://127.0.0.1:7770"}``.

    Raises:
        UsageError: there is no such file, or no task can be played.
        CorruptDataError: a task is not in the format.
    """
    found, left_out = {}, {}
    for place, record in _records(Path(path).expanduser()):
        try:
            name = str(record["task_id"])
            if reason := _reason(record, addresses):
                left_out[name] = reason
            else:
                found[name] = _task(_placed(record, addresses), digest(record))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise CorruptDataError(f"{place} is no task of WebArena: {said}") from error
    if not found:
        why = f"; the first: {next(iter(left_out.values()))}" if left_out else ""
        raise UsageError(f"{path}: none of {len(left_out)} tasks can be played here{why}")
    return WebArenaTasks(found, left_out)


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.is_dir():
        files = sorted(path.glob("*.json"), key=lambda file: (len(file.name), file.name))
        for file in files:
            if file.stem.isdecimal():
                yield from ((str(file), record) for record in read_rows(file))
        return
    if not path.is_file():
        raise MissingDataError(
            f"there is no file or folder {path}; give config_files/test.raw.json of WebArena, or a folder"
        )
    yield from ((f"{path}, row {number}", record) for number, record in enumerate(read_rows(path)))


def _reason(record: Mapping[str, Any], addresses: Mapping[str, str]) -> str:
    """Return why a task cannot be played; "" if it can."""
    graded = record["eval"]
    absent = [name for name in record["sites"] if name not in addresses]
    unnamed = [
        name for name in _PLACE.findall(json.dumps(record)) if name.lower() not in (*addresses, "last_url", "page")
    ]
    if absent or unnamed:
        return f"it needs the site {(absent or unnamed)[0].lower()}"
    if unknown := set(graded["eval_types"]) - set(EVALUATIONS):
        return f"it is graded by {sorted(unknown)[0]}"
    if "fuzzy_match" in (graded.get("reference_answers") or {}):
        return "a language model grades it (fuzzy_match)"
    if graded.get("url_note") not in (None, "", "GOLD in PRED"):
        return f"its addresses are compared by the rule {graded['url_note']!r}"
    for target in graded.get("program_html") or ():
        for text, known in ((target["url"], _POST), (target["locator"], _ROLE)):
            if text.startswith("func:") and not known.match(text):
                return f"it is graded by the site's own API ({text.removeprefix('func:').partition('(')[0]})"
    return ""


def _task(record: Mapping[str, Any], digest_of_it: str) -> WebArenaTask:
    graded = record["eval"]
    kinds = graded["eval_types"]
    answers = (graded.get("reference_answers") or {}) if "string_match" in kinds else {}
    wanted = graded.get("reference_url") or "" if "url_match" in kinds else ""
    targets = graded.get("program_html") or () if "program_html" in kinds else ()
    return WebArenaTask(
        id=str(record["task_id"]),
        intent=str(record["intent"]),
        sites=tuple(record["sites"]),
        start_urls=tuple(record["start_url"].split(" |AND| ")),
        storage_state=Path(record.get("storage_state") or "").name,
        exact_answer=answers.get("exact_match"),
        answer_parts=_texts(answers.get("must_include", [])),
        urls=tuple(wanted.split(" |OR| ")) if wanted else (),
        checks=tuple(_check(target) for target in targets),
        grades_answer="string_match" in kinds,
        digest=digest_of_it,
    )


def _check(target: Mapping[str, Any]) -> HtmlCheck:
    required = target["required_contents"]
    if not {"exact_match", "must_include"} & set(required):
        raise ValueError(f"required_contents has neither exact_match nor must_include, but {', '.join(required)}")
    locator = str(target["locator"]).strip()
    if locator and not locator.startswith(("document.", "[...document.", "func:")):
        raise ValueError(f"the locator {locator[:60]!r} is neither JavaScript of the document nor a function")
    exact = required.get("exact_match")
    return HtmlCheck(
        url=str(target["url"]),
        locator=locator,
        prepare=_texts(target.get("prep_actions", [])),
        exact=None if exact is None else str(exact),
        parts=_texts(required["must_include"]) if exact is None else (),
    )


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError(f"expected a list of texts, got {str(values)[:60]!r}")
    return tuple(str(value) for value in values)


def _placed(value: Any, addresses: Mapping[str, str]) -> Any:
    """Return a record with addresses in place of names such as ``__SHOPPING__``, wherever they are."""
    if isinstance(value, str):
        return _PLACE.sub(lambda found: addresses.get(found[1].lower(), found[0]), value)
    if isinstance(value, dict):
        return {key: _placed(held, addresses) for key, held in value.items()}
    return [_placed(held, addresses) for held in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------ functions of checks


def post_url(text: str, last_url: str) -> str:
    """Return the address that a check's function means: of a Postmill post, without what follows its number.

    Example:
        >>> post_url("func:reddit_get_post_url('__last_url__')", "http://r.localhost/f/books/7/emma?x=1")
        'http://r.localhost/f/books/7/'
    """
    found = _POST.match(text)
    assert found is not None
    url = found[1].replace(_LAST_URL, last_url)
    split = urlsplit(url)
    parts = split.path.split("/")
    if len(parts) < 4 or parts[1] != "f":
        return url
    return f"{split.scheme}://{split.netloc}/f/{parts[2]}/{parts[3]}/"


def is_function(text: str) -> bool:
    """Return True if an address or locator is a function of WebArena's harness."""
    return text.startswith("func:")


def member_of(locator: str) -> str:
    """Return JavaScript that gives a member's role on GitLab's page of members.

    Example:
        >>> "@ann" in member_of("func:gitlab_get_project_memeber_role(__page__, 'ann')")
        True
    """
    found = _ROLE.match(locator)
    assert found is not None
    account = json.dumps(f"@{found[1]}")
    names = "document.querySelectorAll(\"td[data-label='Account'] span.gl-avatar-labeled-sublabel\")"
    roles = 'document.querySelectorAll("td.col-max-role span")'
    return f"{roles}[[...{names}].findIndex(one => one.outerText === {account})].outerText"
