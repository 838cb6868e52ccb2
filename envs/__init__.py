"""The environments that come with agentgym; importing this registers their ids and imports none of them."""

import tomllib
from importlib import resources

from agentgym.registry import register


def _register_all() -> None:
    """Register what ``environments.toml`` lists."""
    listed = tomllib.loads(resources.files(__package__).joinpath("environments.toml").read_text(encoding="utf-8"))
    for name, entry in listed.items():
        register(f"agentgym/{name}", f"agentgym.envs.{entry.pop('class')}", **entry)


_register_all()
