"""Access to a model's key-value cache, whose name depends on the version of transformers."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any


def cache_argument(model: Any) -> str:
    """Return the keyword of a forward call's cache: ``cache``, or ``past_key_values`` before transformers 5.24."""
    kind: Any = type(model.get_base_model() if hasattr(model, "get_base_model") else model)
    return _name_in(kind)


def cache_of(output: Any) -> Any:
    """Return the cache from a forward call's output; it includes the tokens of that call."""
    return output["cache"] if "cache" in output else output["past_key_values"]


@lru_cache
def _name_in(kind: Any) -> str:
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"
