"""Flame graphs of the demo, the embedded engine and the browser, and the functions that take most of their time.

    python benchmarks/flames/record.py
    python benchmarks/flames/record.py --checkout ../old --suffix before     of another checkout, by its own code

py-spy samples the process 100 times a second. Graphs go to ``NAME-SUFFIX.svg`` in ``--output``: open one in a browser,
where wide bars take the time and a click enlarges them. ``SUFFIX.json`` keeps the shares of samples in which agentgym's
functions were running, together with what they call.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from html import unescape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUM_FUNCTIONS = 25
WORK: dict[str, Sequence[str]] = {
    "demo": ("-m", "agentgym", "train", "household-demo", "num_steps=6", "eval.num_episodes=50", "--run-dir", "OUT"),
    "engine": ("benchmarks/torch_engine/bench.py", "--rounds", "3", "--output", "OUT"),
    "browser": ("benchmarks/gui/speed.py", "--rounds", "1", "--episodes", "20", "--out", "OUT"),
}
FRAME = re.compile(r"<title>(.+?) \(([\d,]+) samples, [\d.]+%\)</title>")


def record(name: str, checkout: Path, graph: Path, changes: Sequence[str]) -> dict[str, float]:
    """Run one command under py-spy; return the share of the samples in which each function was running."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    with tempfile.TemporaryDirectory() as folder:
        work = [str(Path(folder) / "out") if part == "OUT" else part for part in (*WORK[name], *changes)]
        spy = [str(Path(sys.executable).with_name("py-spy")), "record", "--output", str(graph), "--", sys.executable]
        subprocess.run([*spy, *work], check=True, cwd=checkout, env=environment, stdout=sys.stderr)
    svg = graph.read_text(encoding="utf-8")
    svg = re.sub(
        r'(<text id="title"[^>]*>)[^<]*', rf"\1{name}", svg
    )  # py-spy writes the command with this machine's paths
    graph.write_text(svg, encoding="utf-8")
    return shares(svg)


def shares(svg: str) -> dict[str, float]:
    """Return the shares of agentgym's functions in a graph, the largest first.

    A function's bars are added up; of one that calls itself each bar counts.

    Example:
        >>> shares("<title>all (8 samples, 100%)</title><title>step (agentgym/a.py:3) (6 samples, 75.00%)</title>")
        {'step (agentgym/a.py)': 0.75}
    """
    found = [(unescape(name), int(count.replace(",", ""))) for name, count in FRAME.findall(svg)]
    total = max(count for _, count in found)
    counts: Counter[str] = Counter()
    for name, count in found:
        if "agentgym/" in name or "envs/" in name:
            counts[re.sub(r":\d+\)$", ")", name)] += count
    return {name: round(count / total, 3) for name, count in counts.most_common(NUM_FUNCTIONS)}


def main() -> None:
    """Record all programs, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--suffix", default="now")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "flames")
    parser.add_argument("changes", nargs="*", help="further arguments of the one command, after --")
    given = parser.parse_args()
    kept = given.output / f"{given.suffix}.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for name in given.work:
        graph = given.output / f"{name}-{given.suffix}.svg"
        found[name] = record(name, given.checkout.resolve(), graph, given.changes)
        kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(graph)


if __name__ == "__main__":
    main()
