"""The environments of agentgym. Importing this package registers their ids without importing the environments."""

from agentgym.canonical import packaged
from agentgym.registry import EnvEntry, register_later


def _register_all() -> None:
    """Register the environments in ``environments.toml``."""
    for name, entry in packaged(__package__, "environments.toml").items():
        of_class, requires, needs = entry.pop("class"), tuple(entry.pop("requires", ())), tuple(entry.pop("needs", ()))
        made = EnvEntry(id=f"agentgym/{name}", requires=requires, needs=needs, **entry)
        register_later(made, f"agentgym.envs.{of_class}")


_register_all()
