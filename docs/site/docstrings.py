"""Turn the roles of docstrings, as in :class:`Task`, into code spans, which Markdown shows."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:mod|class|func|meth|attr|data|obj):`~?([^`]+)`")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
LITERAL = re.compile(r"::\n(?=\n +)")


class Roles(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub("Examples:", LITERAL.sub(":\n", text))
