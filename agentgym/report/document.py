"""One HTML file that needs nothing beside itself: templates, assets, and data that cannot break out of its element."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **values: Any) -> str:
    """A page from one of this package's templates; whatever is not :class:`Markup` is escaped."""
    return str(_templates().get_template(template).render(**values))


def assets(*names: str) -> Markup:
    """Style sheets or scripts of this package, joined."""
    return Markup("\n".join(_asset(name) for name in names))


def script_data(value: object) -> Markup:
    """JSON that cannot end the script element it stands in.

    Example:
        >>> print(script_data({"said": "</script>"}))
        {"said":"\\u003c/script\\u003e"}
    """
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _asset(name: str) -> str:
    return (files("agentgym.report") / name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    return Environment(
        autoescape=True, loader=FunctionLoader(_asset), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
