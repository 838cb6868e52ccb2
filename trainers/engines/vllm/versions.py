"""The versions of vLLM that agentgym supports.

Requests were compared with the fields and routes of 0.26, 0.32 and 0.33 (`tests/trainers/test_vllm_versions.py`). Other
versions are rejected, because a server ignores unknown fields or fails in the middle of an update.
"""

from __future__ import annotations

import re

from agentgym.errors import UsageError

OLDEST, NEWEST = (0, 26), (0, 33)
NCCL_SINCE = (0, 32)
"""The first version whose workers join a communicator by a unique id."""


def check_version(version: str, where: str, oldest: tuple[int, int] = OLDEST) -> None:
    """Check that a version of vLLM is supported.

    Args:
        version: the version.
        where: the server or environment with this version, for the message.
        oldest: the first supported version.

    Raises:
        UsageError: the version is too old, too new, or not a version.

    Example:
        >>> check_version("0.32.1.dev3+g1a2b3c4", "the server")
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and oldest <= (int(found[1]), int(found[2])) <= NEWEST:
        return
    known = " to ".join(".".join(map(str, release)) for release in (oldest, NEWEST))
    raise UsageError(
        f"{where} is vLLM {version or 'of an unknown version'}, and this needs {known}: "
        f"pip install 'vllm>={oldest[0]}.{oldest[1]},<{NEWEST[0]}.{NEWEST[1] + 1}' in its environment"
    )
