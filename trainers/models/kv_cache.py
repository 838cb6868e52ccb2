"""The cache of keys and values of a model, by the name that the installed transformers has for it."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any


def cache_argument(model: Any) -> str:
    """Return the keyword by which a model's forward takes a cache: ``cache``, or ``past_key_values`` before 5.24."""
    kind: Any = type(model.get_base_model() if hasattr(model, "get_base_model") else model)
    return _name_in(kind)


def cache_of(output: Any) -> Any:
    """Return the cache that a forward gave, which holds the tokens of that forward too."""
    return output["cache"] if "cache" in output else output["past_key_values"]


@lru_cache
def _name_in(kind: Any) -> str:
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"
