"""Modules of installed packages that register environments and components: the packages' entry points.

A module that cannot be imported leaves the other packages usable. A line on standard error names its package, and so
does the error for a name that then is unknown.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging

from agentgym.error_places import place_of
from agentgym.errors import contained_exit, gist

ENVS, COMPONENTS = "agentgym.envs", "agentgym.components"

_failures: dict[tuple[str, str], tuple[str, str]] = {}
_imported: set[tuple[str, str]] = set()
_importing: list[str] = []


def import_all(group: str) -> None:
    """Import the modules that a group's entry points name, each once; warn of those that fail."""
    for point in importlib.metadata.entry_points(group=group):
        key = (group, point.value)
        if key in _imported:
            continue
        _imported.add(key)
        _importing.append(point.value)
        try:
            with contained_exit():
                importlib.import_module(point.value)
        except Exception as error:
            package = point.dist.name if point.dist else point.value
            reason = f"{type(error).__name__}: {gist(error)}{place_of(error, or_ours=False)}"
            if ":" in point.value:
                reason = f"the entry names an object; expected the module alone, {point.value.partition(':')[0]}"
            _failures[key] = package, f"{group}: {point.value}: {reason}"
            logging.getLogger("agentgym").warning("package %s is left out; %s", package, _failures[key][1])
        finally:
            _importing.pop()


def are_importing() -> bool:
    """Return True while the module of an entry point is imported."""
    return bool(_importing)


def failures() -> tuple[tuple[str, str], ...]:
    """Return the name of each package of which a module could not be imported, and the reason."""
    return tuple(_failures.values())


def hint(usual: str) -> str:
    """Return what the error for an unknown name adds: ``usual``, and the packages that may lack the name."""
    names = ", ".join(sorted({package for package, _ in failures()}))
    return f"{usual}; not loaded: {names}, as `agentgym doctor` says" if names else usual
