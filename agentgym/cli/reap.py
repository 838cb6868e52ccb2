"""``agentgym reap``: remove leftovers of killed runs."""

from __future__ import annotations

from dataclasses import asdict

from agentgym.cli.output import JsonFlag, output


def reap(as_json: JsonFlag = False) -> None:
    """Remove sandboxes, volumes and folders of runs that were killed; keep those of live runs."""
    from agentgym.sandboxes.reaper import reap as reap_all

    with output(as_json) as out:
        report = reap_all()
        out.result({**asdict(report), "num_removed": report.num_removed})
        for kind in ("containers", "volumes", "processes", "cgroups", "folders"):
            for name in getattr(report, kind):
                out.console.print(f"removed {kind[:-1] if kind != 'processes' else 'process'} {name}", markup=False)
        for problem in report.problems:
            out.status.print(f"not checked or not removed: {problem}", markup=False)
        out.console.print(f"{report.num_removed} removed, {report.num_kept} kept")
