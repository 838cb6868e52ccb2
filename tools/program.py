"""Modules of this package as one piece of Python text, to be run where the package is not installed."""

from __future__ import annotations

import functools
import importlib.resources

_BOOT = """import sys
path = sys.path[:]
sys.path[:] = [folder for folder in path if folder]
import types
for name, text in {sources!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
sys.path[:] = path
"""


@functools.cache
def program_of(package: str, *names: str) -> str:
    """Return text that makes the modules ``package.name``, in this order, and leaves the last one as ``module``.

    What they import is never taken from the folder that the text runs in, which may hold untrusted files.

    Example:
        >>> text = program_of("agentgym.tools.inside", "cell")
        >>> exec(text + "print(module.__name__)")
        agentgym.tools.inside.cell
    """
    folder = importlib.resources.files(package)
    sources = [(f"{package}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in names]
    return _BOOT.format(sources=sources)
