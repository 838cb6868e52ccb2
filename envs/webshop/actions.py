"""WebShop's actions as text: ``search[keywords]`` and ``click[element]``."""

from __future__ import annotations

import re
from typing import NamedTuple

_ACTION = re.compile(r"(search|click)\[(.+)\]")


class Act(NamedTuple):
    """One action: ``search`` with keywords, or ``click`` with the text of what to click.

    Example:
        >>> str(Act("click", "buy now"))
        'click[buy now]'
    """

    name: str
    argument: str

    def __str__(self) -> str:
        return f"{self.name}[{self.argument}]"


def parse_act(text: str) -> Act | None:
    """Read an action from the last line of a text that is not empty; None if it begins with none.

    Case does not matter in the argument; what follows the last bracket is ignored, as in WebShop.

    Example:
        >>> parse_act("I should look for shoes.\\nsearch[Red Shoes]")
        Act(name='search', argument='red shoes')
        >>> parse_act("click buy now") is None
        True
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    found = _ACTION.match(lines[-1]) if lines else None
    argument = found.group(2).strip().lower() if found else ""
    return Act(found.group(1), argument) if found and argument else None
