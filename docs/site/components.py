"""Write the page of all components, from their decorators and docstrings: ``python docs/site/components.py``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import MISSING, fields
from itertools import groupby
from pathlib import Path

from agentgym.credit.component import credit_table
from agentgym.plugins import Component
from agentgym.rollout.strategies.component import strategy_table
from agentgym.trainers.data.columns import COLUMNS
from agentgym.trainers.losses.component import OF_TOKENS, LossComponent, loss_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "component_list.md"
HEAD = """# All components

Losses, corrections, token masks, regularisers, auxiliary losses, strategies and the components of credit. Each has its
settings, their defaults, its file and its status. The page is made from the code (`python docs/site/components.py`).
Their use: [credit](credit.md), [the loss](training.md#the-loss), [strategies](strategies.md).
"""
TITLES = {
    "loss": ("Losses", "`loss.kind`, with `loss.options`"),
    "correction": ("Corrections", "`loss.corrections`"),
    "token mask": ("Token masks", "`loss.token_masks`"),
    "regulariser": ("Regularisers", "`loss.regularisers`"),
    "auxiliary loss": ("Auxiliary losses", "`loss.auxiliaries`"),
    "estimator": ("Estimators", "`credit.estimator`, with `credit.options`"),
    "shaper": ("Shapers", "`credit.shapers`"),
    "modulator": ("Modulators", "`credit.modulators`"),
    "selection": ("Selections", "`credit.selections`"),
}
"""Heading of each family, and the settings that take it. Other families are strategies, under ``strategy.FAMILY``."""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    found = [*loss_table(), *strategy_table(), *credit_table()]
    for family, members in groupby(found, key=lambda one: one.family):
        title, setting = TITLES.get(family, (f"Strategies: {family}", f"`strategy.{family.replace(' ', '_')}`"))
        parts.append(f"## {title}\n\nSet by {setting}.\n\n{_rows(members)}\n")
    return "\n".join([*parts, _columns()])


def _columns() -> str:
    """Return the section of columns: those of the trainer, and agentgym's own of episodes."""
    given = [(name, "token", "update", meaning) for name, meaning in OF_TOKENS.items()]
    own = [
        (one.name, one.unit, one.phase, _about(one).removeprefix("Return ").removesuffix("."))
        for one in COLUMNS.values()
        if one.module.startswith("agentgym.")
    ]
    lines = ["| column | one value per | phase | meaning |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {unit} | {phase} | {meaning} |" for name, unit, phase, meaning in given + own]
    told = "A component of the loss reads a column by a parameter of its name ([how](components.md#columns-of-tokens))."
    return f"## Columns of tokens\n\n{told}\n\n" + "\n".join(lines) + "\n"


def _rows(members: Iterable[Component]) -> str:
    lines = ["| name | what it does | settings | status | file |", "|---|---|---|---|---|"]
    for one in members:
        lines.append(f"| `{one.name}` | {_about(one)} | {_settings(one)} | {one.status} | `{one.file}` |")
    return "\n".join(lines)


def _about(one: Component) -> str:
    """Return the first sentence of a component's docstring, without the markup of docstrings."""
    text = " ".join((one.call.__doc__ or "").split("\n\n")[0].split())
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`").replace("|", r"\|")
    return text


def _settings(one: Component) -> str:
    """Return the settings with their defaults; of a loss first those of ``loss.*`` that it changes."""
    shown = []
    if isinstance(one, LossComponent) and one.family == "loss":
        clips = [(name, getattr(one, name)) for name in ("clip_low", "clip_high") if getattr(one, name) is not None]
        shown = [f"`loss.{name}` ({value})" for name, value in clips]
        shown += [f"`loss.ratio_level` ({one.ratio_level})", f"`loss.aggregation` ({one.aggregation})"]
    for field in fields(one.options) if one.options else ():
        if field.name == "kind":
            continue
        value = field.default_factory() if field.default_factory is not MISSING else field.default
        shown.append(f"`{field.name}`" + ("" if value is MISSING else f" ({_default(value)})"))
    return ", ".join(shown)


def _default(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.split())
    return (text if len(text) <= 40 else "a text") or "empty"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
