"""Training runs as processes: several at the same time, each after the run that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentgym.errors import CorruptDataError
from agentgym.processes.watched import end_of_log, end_watched, interrupt_watched, start_watched
from agentgym.progress import progress_bars
from agentgym.rollout.record import read_json_lines, read_json_object

_LOOK_S = 0.25
_SAVE_S = 120.0
"""Longest time in seconds in which an interrupted run saves its last step."""
_USAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """One training run."""

    name: str
    folder: Path
    begin: tuple[str, ...]
    """Words of ``agentgym train`` that begin it."""
    needs: str = ""
    """Name of the job that must have finished."""

    def words(self) -> list[str]:
        """Return the words of ``agentgym train`` that begin the run, or resume it if it has begun."""
        if (self.folder / "config.json").is_file():
            return ["--resume", str(self.folder)]
        return [*self.begin, "--run-dir", str(self.folder)]

    def progress(self) -> str:
        """Return the phase and the step that the run has reached, as text."""
        try:
            rows = read_json_lines(self.folder / "metrics.jsonl")
            last = next((row for row in reversed(rows) if row.get("phase") in ("sft", "rl")), None)
            steps = read_json_object(self.folder / "config.json").get("num_steps")
        except (CorruptDataError, OSError):  # a line that is being written
            return self.name
        if last is None:
            return self.name
        return f"{self.name} {last['phase']} {last['step']}" + (f"/{steps}" if last["phase"] == "rl" else "")


def run_jobs(
    jobs: Sequence[SweepJob], logs: Path, most: int, status: Console, devices: Sequence[str] = ()
) -> dict[str, str]:
    """Run what has not finished, at most ``most`` jobs at the same time, and return why jobs failed, by their names.

    A job whose command line is wrong (exit code 2) stops the rest, which would fail in the same way. If this process is
    interrupted, every running job saves its last step first; if it is killed, they end with it.

    Args:
        logs: folder for what each job prints.
        status: console for the progress.
        devices: GPUs to share out, one for each of the jobs at the same time.
    """
    from agentgym.trainers.run.folder import is_finished

    done = {job.name for job in jobs if is_finished(job.folder)}
    waiting = [job for job in jobs if job.name not in done]
    running: dict[str, tuple[SweepJob, subprocess.Popen[bytes], int]] = {}
    failed: dict[str, str] = {}
    if done:
        status.print(f"{len(done)} of {len(jobs)} runs have finished already", highlight=False)
    with progress_bars(status) as bars:
        bar = bars.add_task("runs", total=len(jobs), completed=len(done))
        try:
            while waiting or running:
                free = [slot for slot in range(most) if slot not in {used for _, _, used in running.values()}]
                for job, slot in zip([job for job in waiting if job.needs in {"", *done}], free, strict=False):
                    waiting.remove(job)
                    running[job.name] = (job, _start(job, logs, slot, devices), slot)
                    _say(status, f"{job.name} begins")
                time.sleep(_LOOK_S)
                for job, process, _ in list(running.values()):
                    if (code := process.poll()) is None:
                        continue
                    del running[job.name]
                    if code or not is_finished(job.folder):
                        failed[job.name] = _why(logs / job.name, code)
                        waiting = [] if code == _USAGE else [one for one in waiting if one.needs != job.name]
                        _say(status, f"{job.name} failed: {failed[job.name]}")
                    else:
                        done.add(job.name)
                        _say(status, f"{job.name} has finished, {len(done)} of {len(jobs)}")
                bars.update(bar, completed=len(done), facts=[job.progress() for job, _, _ in running.values()])
        finally:
            _stop([process for _, process, _ in running.values()])
    return failed | {job.name: "not begun" for job in jobs if job.name not in done | set(failed)}


def _start(job: SweepJob, logs: Path, slot: int, devices: Sequence[str]) -> subprocess.Popen[bytes]:
    (logs / job.name).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "agentgym", "train", *job.words()]
    return start_watched(command, _variables(os.environ, slot, devices), logs / job.name, work_dir=Path.cwd())


def _variables(inherited: Mapping[str, str], slot: int, devices: Sequence[str]) -> dict[str, str]:
    """Return the environment of a job, which sees one of several GPUs."""
    chosen = {"CUDA_VISIBLE_DEVICES": devices[slot % len(devices)]} if len(devices) > 1 else {}
    return dict(inherited) | chosen


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt jobs as Ctrl-C does, wait until they have saved, and end what still runs."""
    for process in processes:
        interrupt_watched(process)
    for process in processes:
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(_SAVE_S)
        end_watched(process)


def _why(log: Path, code: int) -> str:
    """Return the last error that a job printed, or else its last line."""
    lines = end_of_log(log).splitlines() or [f"exit code {code}"]
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), lines[-1])


def _say(status: Console, line: str) -> None:
    status.print(line, markup=False, highlight=False, soft_wrap=True)
