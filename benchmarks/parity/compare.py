"""Compare our components with the authors' released code on random inputs.

Nothing is fetched. Clone the releases first, each into ``ROOT/owner+name`` at the commit that ``--list`` names, then::

    python benchmarks/parity/compare.py ROOT --trials 200

The table (component, release, largest difference) goes to ``results.json`` and ``results.md`` in this folder.
A row of a release that ``ROOT`` does not hold keeps its earlier result.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # cases import `released` as a sibling

from released import Case, commit_of  # noqa: E402

TOLERANCE = 1e-6
"""Largest absolute difference, in float64, at which two results count as equal."""


def all_cases() -> list[Case]:
    """Return the cases of every ``case_*.py`` in this folder, by component."""
    cases: list[Case] = []
    for path in sorted(HERE.glob("case_*.py")):
        spec = importlib.util.spec_from_file_location(f"parity_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        cases += module.CASES
    return sorted(cases, key=lambda case: (case.component, case.variant, case.release.repository))


def measure(case: Case, root: Path, trials: int) -> dict[str, Any]:
    """Run one case ``trials`` times, seeds 0 to ``trials - 1``, and return its row of the table."""
    folder = case.release.folder(root)
    largest = max(case.largest_gap(folder, np.random.default_rng(seed)) for seed in range(trials))
    return {
        "component": case.component,
        "variant": case.variant,
        "repository": case.release.repository,
        "commit": commit_of(folder),
        "file": case.file,
        "trials": trials,
        "largest_difference": largest if np.isfinite(largest) else str(largest),
        "equal": bool(largest <= TOLERANCE),
        "explained": case.explained,
        "date": date.today().isoformat(),
    }


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of ``results.md``."""
    lines = [
        "| component | release | file | largest difference | trials |",
        "|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for row in rows:
        name = f"`{row['component']}`" + (f" ({row['variant']})" if row["variant"] else "")
        size = row["largest_difference"]
        shown = size if isinstance(size, str) else f"{size:.1e}"
        if not row["equal"]:
            notes.append(f"{len(notes) + 1}. `{row['component']}`: {row['explained'] or 'not explained'}")
            shown += f" [{len(notes)}]"
        lines.append(f"| {name} | {row['repository']} {row['commit']} | {row['file']} | {shown} | {row['trials']} |")
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison and return the exit code: 1 if a row differs and nothing explains it."""
    parser = argparse.ArgumentParser(description="Compare components with the authors' released code.")
    parser.add_argument("root", nargs="?", type=Path, help="folder with one checkout per release, named owner+name")
    parser.add_argument("--trials", type=int, default=200, help="random inputs per component")
    parser.add_argument("--only", default="", help="components to run, separated by commas; all by default")
    parser.add_argument("--list", action="store_true", help="print the releases and commits, and run nothing")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results.json and results.md")
    options = parser.parse_args(arguments)
    cases = all_cases()
    if options.list:
        for repository, commit in sorted({(case.release.repository, case.release.commit) for case in cases}):
            print(f"{repository} {commit}")
        return 0
    if options.root is None or not options.root.is_dir():
        parser.error("name the folder that holds the checkouts; --list prints which it should hold")
    if options.trials < 1:
        parser.error(f"--trials must be at least 1, got {options.trials}")
    only = set(filter(None, options.only.split(",")))
    if unknown := sorted(only - {case.component for case in cases}):
        known = ", ".join(sorted({case.component for case in cases}))
        parser.error(f"unknown component {', '.join(unknown)}; known: {known}")
    return _run([case for case in cases if not only or case.component in only], cases, options)


def _run(chosen: list[Case], cases: list[Case], options: argparse.Namespace) -> int:
    results = options.out / "results.json"
    earlier = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    known = {(case.component, case.variant, case.release.repository) for case in cases}
    rows = {key: row for row in earlier if (key := _key(row)) in known}
    failed = False
    for case in chosen:
        if not case.release.folder(options.root).is_dir():
            print(f"{case.component}: no checkout of {case.release.repository} below {options.root}", file=sys.stderr)
            continue
        row = rows[case.component, case.variant, case.release.repository] = measure(case, options.root, options.trials)
        verdict = "equal" if row["equal"] else ("explained" if case.explained else "DIFFERS")
        failed |= verdict == "DIFFERS"
        name = f"{case.component} {case.variant}".rstrip()
        print(f"{name:44} {row['repository']:44} {row['largest_difference']!s:>24} {verdict}")
    ordered = [rows[key] for key in sorted(rows)]
    results.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    (options.out / "results.md").write_text(as_markdown(ordered), encoding="utf-8")
    print(f"results: {results}")
    return 1 if failed else 0


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["component"], row["variant"], row["repository"]


if __name__ == "__main__":
    sys.exit(main())
