"""agentgym's own losses, corrections, token masks and regularisers: those that ``catalogue.toml`` lists, and those that
register themselves, each in a file of :mod:`agentgym.trainers.losses.published`."""

from __future__ import annotations

import importlib
import pkgutil

from agentgym.canonical import packaged
from agentgym.trainers.losses import published
from agentgym.trainers.losses.component import FAMILIES, add

PACKAGE = "agentgym.trainers.losses"


def _add_all() -> None:
    listed = packaged(PACKAGE, "catalogue.toml")
    released = listed.pop("released")
    for family in FAMILIES:
        for name, facts in listed[family].items():
            parity, options = facts.pop("parity", ""), facts.pop("options", "")
            module, _, class_name = options.partition(":")
            add(
                family,
                name,
                _below(facts.pop("function")),
                options=getattr(importlib.import_module(f"{PACKAGE}.{module}"), class_name) if options else None,
                parity=released.get(parity, parity),
                prepare=_below(facts.pop("prepare", "")),
                recredit=_below(facts.pop("recredit", "")),
                test=f"tests/trainers/{facts.pop('test')}",
                **({} if facts.pop("has_clip", True) else {"clip_low": None, "clip_high": None}),
                **facts,
            )


def _below(function: str) -> str:
    return f"{PACKAGE}.{function}" if function and not function.startswith("agentgym.") else function


_add_all()
for _module in pkgutil.iter_modules(published.__path__, f"{published.__name__}."):
    importlib.import_module(_module.name)
