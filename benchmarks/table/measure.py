"""Measure the rows of the speed table, each by its script, and write the table.

    python benchmarks/table/measure.py                     all rows, on an idle machine
    python benchmarks/table/measure.py --scripts credit start

A script runs ``--repeats`` times, each in a separate process; the table has the median and the range. Before each run
the script waits until the load is below 1.2. If it does not fall in time, measuring ends, and earlier results are kept.
Rows of other scripts keep their last figures, each with its machine, date and commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentgym.trainers.models.sources import cached_model

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MAX_LOAD = 1.2
"""Largest load of the last minute; the script that ran before counts for 1."""

Table = dict[str, Any]


def read_table() -> Table:
    """Return the scripts and rows of ``rows.toml``."""
    return tomllib.loads((HERE / "rows.toml").read_text(encoding="utf-8"))


def figure(result: Any, path: list[Any]) -> float:
    """Read a script's result at a path of names, indices and descriptions of list items.

    Raises:
        LookupError: nothing is there.
    """
    for step in path:
        if isinstance(step, dict):
            found = [item for item in result if all(item[name] == value for name, value in step.items())]
            if len(found) != 1:
                raise LookupError(f"{len(found)} rows say {step}, not one")
            result = found[0]
        else:
            result = result[step]
    return float(result)


def run(script: Table, extra: list[str]) -> Any:
    """Run a script once, and return the JSON that it writes.

    Raises:
        subprocess.CalledProcessError: it failed; its output was shown.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / script.get("result", "out.json")
        arguments = [{"OUT": str(out), "FOLDER": folder}.get(part, part) for part in script["command"]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *arguments, *extra], check=True, cwd=ROOT, env=environment, stdout=sys.stderr)
        return json.loads(out.read_text(encoding="utf-8"))


def missing(script: Table) -> str:
    """Return the name of a missing requirement of a script; empty if it can run."""
    need = script.get("needs", "")
    if need == "docker":
        info = shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True, check=False)
        return "" if info and info.returncode == 0 else "a running Docker engine"
    if need == "browser":
        return "" if shutil.which("chromium-headless-shell") or shutil.which("chromium") else "Chromium"
    if need == "smollm2":
        return "" if cached_model("smollm2") else "SmolLM2: agentgym model import smollm2"
    return ""


def wait_until_quiet(patience_s: float) -> bool:
    """Wait until the load is below the limit; return False if it does not fall in time."""
    until = time.monotonic() + patience_s
    while os.getloadavg()[0] >= MAX_LOAD:
        if time.monotonic() > until:
            return False
        time.sleep(5)
    return True


def origin() -> dict[str, str]:
    """Return machine, date and commit."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return {
        "machine": f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
    }


def measured(rows: list[Table], results: list[Any], load: float) -> dict[str, Table]:
    """Return the figures of a script's rows, by job."""
    found = {}
    for row in rows:
        values = [figure(result, row["read"]) for result in results]
        if "per" in row:
            values = [value / figure(result, row["per"]) for value, result in zip(values, results, strict=True)]
        about = {"lowest": min(values), "highest": max(values), "repeats": len(values), "load": round(load, 2)}
        found[row["job"]] = {"now": statistics.median(values), **about, **origin()}
    return found


def markdown(table: Table, figures: dict[str, Table]) -> str:
    """Return the table, and where each row was measured."""
    lines = [
        "# Speed",
        "",
        "Median and range of several runs, each in a process of its own, on a machine that does nothing else.",
        "Scripts and aims: `rows.toml`.",
        "",
        "| job | at 6deccf0 | now | range | aim | reached |",
        "|---|---|---|---|---|---|",
    ]
    for row in table["row"]:
        found, aim, unit = figures.get(row["job"]), row.get("aim"), row["unit"]
        goal = "" if aim is None else f"{aim:g} {unit}"
        if found is None:
            lines.append(f"| {row['job']} | {row['before']} | not measured | | {goal} | |")
            continue
        is_reached = aim is not None and (found["now"] >= aim if row.get("more_is_better") else found["now"] <= aim)
        reached = "" if aim is None else "yes" if is_reached else "no"
        spread = f"{found['lowest']:.3g} to {found['highest']:.3g}"
        lines.append(f"| {row['job']} | {row['before']} | {found['now']:.3g} {unit} | {spread} | {goal} | {reached} |")
    places = sorted({f"{one['machine']}, {one['date']}, commit {one['commit']}" for one in figures.values()})
    return "\n".join([*lines, "", *(f"Measured on: {place}." for place in places)]) + "\n"


def main() -> None:
    """Measure, and write the table after every script."""
    table = read_table()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", nargs="+", choices=list(table["script"]), default=list(table["script"]))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patience-s", type=float, default=300.0, help="how long to wait for a quiet machine")
    parser.add_argument("--tiny", action="store_true", help="run the scripts at tiny sizes, at any load, as a test")
    parser.add_argument(
        "--output", type=Path, default=HERE / "results", help="without suffix; .json and .md are written"
    )
    given = parser.parse_args()
    kept = given.output.with_suffix(".json")
    figures = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for name in given.scripts:
        script = table["script"][name]
        if reason := missing(script):
            print(f"{name}: left out, needs {reason}", file=sys.stderr)
            continue
        results, load = [], 0.0
        for _ in range(1 if given.tiny else script.get("repeats", given.repeats)):
            if not given.tiny and not wait_until_quiet(given.patience_s):
                sys.exit(
                    f"the load is {os.getloadavg()[0]:.1f}, not under {MAX_LOAD}: stop other work, then run this again"
                )
            load = max(load, os.getloadavg()[0])
            results.append(run(script, script["tiny"] if given.tiny else []))
        figures |= measured([row for row in table["row"] if row["script"] == name], results, load)
        kept.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        given.output.with_suffix(".md").write_text(markdown(table, figures), encoding="utf-8")
    print(given.output.with_suffix(".md"))


if __name__ == "__main__":
    main()
