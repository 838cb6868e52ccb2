"""The environments of agentgym. Importing this package registers their ids without importing the environments."""

from agentgym.canonical import packaged
from agentgym.registry import register


def _register_all() -> None:
    """Register the environments in ``environments.toml``."""
    for name, entry in packaged(__package__, "environments.toml").items():
        register(f"agentgym/{name}", f"agentgym.envs.{entry.pop('class')}", **entry)


_register_all()
