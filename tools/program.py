"""Modules of this package as one piece of Python text, to be run where the package is not installed."""

from __future__ import annotations

import functools
import importlib.resources

_BOOT = """import sys, types
for name, text in {sources!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
"""


@functools.cache
def program_of(package: str, *names: str) -> str:
    """Text that makes the modules ``package.name``, in this order, and leaves the last one as ``module``.

    Example:
        >>> text = program_of("agentgym.tools.inside", "cell")
        >>> exec(text + "print(module.__name__)")
        agentgym.tools.inside.cell
    """
    folder = importlib.resources.files(package)
    sources = [(f"{package}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in names]
    return _BOOT.format(sources=sources)
