"""The environments of agentgym. Importing this package registers their ids without importing the environments."""

import tomllib
from importlib import resources

from agentgym.registry import register


def _register_all() -> None:
    """Register the environments in ``environments.toml``."""
    listed = tomllib.loads(resources.files(__package__).joinpath("environments.toml").read_text(encoding="utf-8"))
    for name, entry in listed.items():
        register(f"agentgym/{name}", f"agentgym.envs.{entry.pop('class')}", **entry)


_register_all()
