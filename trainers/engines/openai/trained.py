"""Settings by which a trained model's folder says how its prompts describe tools, for endpoints that serve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, UsageError
from agentgym.trainers.engines.openai.endpoint import Endpoint, check_endpoint
from agentgym.trainers.models.card import ENDPOINT_FILE

_OPTIONS: Final = ("tools", "format", "tools_style", "results")


def saved_options(folder: Path) -> dict[str, str]:
    """Return the options in a model's folder; none if agentgym did not train the model.

    Raises:
        CorruptDataError: the file cannot be read, or has other options.
    """
    file = folder / ENDPOINT_FILE
    if not file.is_file():
        return {}
    try:
        found = read_json(file.read_text(encoding="utf-8"))
        if not isinstance(found, Mapping) or set(found) - set(_OPTIONS):
            raise UsageError(f"expected some of {', '.join(_OPTIONS)}")
        check_endpoint(Endpoint(url="", **found))
    except (OSError, ValueError, TypeError, UsageError) as error:
        raise CorruptDataError(f"{file} cannot be read ({error})") from error
    return {name: str(value) for name, value in found.items()}


def as_trained(endpoint: Endpoint, card: Any) -> tuple[Endpoint, str]:
    """Return an endpoint that asks the served model as it was trained, and a note on it; the same if nothing is known.

    Args:
        card: what the server says of the model. vLLM names its folder as ``root``.
    """
    root = card.get("root") if isinstance(card, Mapping) else None
    if not endpoint.follows_model or not isinstance(root, str) or not Path(root).is_absolute():
        return endpoint, ""
    options: dict[str, Any] = saved_options(Path(root))
    if not options:
        return endpoint, ""
    told = "&".join(f"{name}={value}" for name, value in options.items())
    return replace(endpoint, **options), f"note: the model is asked as it was trained, by {told} ({root})"
