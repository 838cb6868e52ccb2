"""Folders and process groups that end with the process that made them, however it ends."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

# A child would be killed with its actor, so the shell that waits for the end of its input is a grandchild.
_CLEAN = """exec 3<&0
(groups=
while read -r group <&3; do groups="$groups -$group"; done
[ -z "$groups" ] || kill -9 $groups
rm -rf -- "$0") &"""


class Remains:
    """A temporary folder and process groups that end with this process, also if it is killed.

    Args:
        prefix: the beginning of the folder's name.
    """

    def __init__(self, prefix: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        nowhere = subprocess.DEVNULL
        shell = subprocess.Popen(
            ["sh", "-c", _CLEAN, self.folder],
            stdin=subprocess.PIPE,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
        shell.wait()
        assert shell.stdin is not None
        self._pipe = shell.stdin

    def add_group(self, leader: int) -> None:
        """Kill a process group when this process ends: a server's workers may outlive the server."""
        self._pipe.write(f"{leader}\n".encode())
        self._pipe.flush()
