"""Description of the machine and the commit that a result was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sqlite3
import subprocess
from pathlib import Path


def about_this_machine(*packages: str) -> dict[str, object]:
    """Machine, load, versions, date and commit."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "machine": f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": round(os.getloadavg()[0], 1),  # above 1: other work shared the cores
        "versions": {"sqlite": sqlite3.sqlite_version, **versions},
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip(),
    }
