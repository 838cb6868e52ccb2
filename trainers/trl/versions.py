"""The versions of TRL that the adapters work with."""

from __future__ import annotations

import importlib.metadata

from agentgym.errors import MissingExtraError, UsageError
from agentgym.installation import install_command

TESTED_FROM, TESTED_BELOW = (1, 16), (1, 17)
"""The range of the extra ``trl``. Subclassing GRPOTrainer means overriding private methods, which any minor version
may change; a new one is added here once the tests pass with it."""


def check_trl(what: str) -> None:
    """Check that a tested version of TRL is installed.

    Args:
        what: the caller, for the error.

    Raises:
        MissingExtraError: TRL is not installed.
        UsageError: another version of TRL is installed.
    """
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError(what, "trl") from None
    major_minor = tuple(int(number) for number in version.split(".")[:2])
    if not TESTED_FROM <= major_minor < TESTED_BELOW:
        low, high = (".".join(map(str, bound)) for bound in (TESTED_FROM, TESTED_BELOW))
        raise UsageError(
            f"{what} is tested with trl>={low},<{high}, and overrides methods that other versions may have changed; "
            f"installed is {version}. To get a tested one: {install_command('trl')}"
        )
