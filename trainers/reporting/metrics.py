"""Logs of a run's metrics: JSON lines, TensorBoard, a live screen, and optionally Weights & Biases."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import TaskID

from agentgym.errors import UsageError, gist, require_extra
from agentgym.progress import StatusConsole, SuccessCount, progress_bars
from agentgym.rollout.episode_notes import EpisodeNotes
from agentgym.rollout.journal import note_remark
from agentgym.rollout.pulse import Beat
from agentgym.rollout.record import append_json_line, read_json_lines, rewrite_json_lines
from agentgym.trainers.reporting.tensorboard_files import forget_events, tensorboard_writer
from agentgym.trainers.types import Metrics
from agentgym.types import Trajectory

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run as WandbRun

SHOWN = ("success", "return", "loss", "entropy", "num_turns", "logprob_gap_max", "tokens_per_s")
NUM_LINES, MOST_BETWEEN = 10, 10
"""Number of lines per phase if the output is not a terminal, and the largest number of steps between them."""
QUIET_S = 30.0
"""Seconds without a line after which a phase that plays episodes says how far it is, if the output is no terminal."""
_NOTE = "note: "
_PHASES = ("sft", "rl", "eval")
_WANDB_FOLDER = re.compile(r"(?:offline-)?run-\d+_\d+-(.+)")
"""Name of the folder that wandb makes for each start of a run, with the run's id."""


class MetricsLog:
    """A log that shows, stores and forwards one row of metrics per step.

    Args:
        run_dir: folder of ``metrics.jsonl`` and ``tensorboard/``; it must exist when the log is entered.
        wandb_project: Weights & Biases project to forward to; empty for none; see :func:`check_wandb`.
        clock: seconds, for lines about phases that play episodes for long.
    """

    def __init__(
        self,
        run_dir: Path,
        wandb_project: str = "",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = run_dir / "metrics.jsonl"
        self.logged_step = 0
        """RL step of the latest row that was stored, shown or not; 0 if there is none."""
        self._run_dir, self._wandb_project = run_dir, wandb_project
        self._tensorboard: SummaryWriter | None = None
        self._wandb: WandbRun | None = None
        self._console = console or StatusConsole()
        self._progress = progress_bars(self._console)
        self._bars: dict[str, TaskID] = {}
        self._num_steps: dict[str, int] = {}
        self._episodes: dict[str, SuccessCount] = {}
        self._clock, self._said_at, self._num_played = clock, clock(), 0
        self._in_wandb: set[tuple[str, int]] = set()
        """Phase and step of rows that a resumed run writes again, and that wandb, which never forgets one, has."""
        self._facts: list[str] = []
        """Facts of the last row."""
        self._failed: set[str] = set()
        """Phases whose first failed episode has been reported."""
        self._notes = EpisodeNotes(self.say)

    def __enter__(self) -> Self:
        self._tensorboard = tensorboard_writer(self._run_dir / "tensorboard")
        self._wandb = _wandb_run(self._run_dir, self._wandb_project)
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=int(kind is not None))

    def say(self, text: str) -> None:
        """Print a line above the progress bars; a note also goes into the run's journal, for its report."""
        self._said_at = self._clock()
        if text.startswith(_NOTE) and self._run_dir.is_dir():
            note_remark(self._run_dir, text.removeprefix(_NOTE))
        # where lines go to a file, breaking them is up to the reader
        self._console.print(text, highlight=False, markup=False, soft_wrap=not self._console.is_terminal)

    def begin(self, phase: str, num_steps: int, done: int = 0) -> None:
        """Show a progress bar for a phase, and remove those of phases that counted episodes."""
        for old in self._episodes:
            self._progress.remove_task(self._bars.pop(old))
        self._episodes.clear()
        self._bars[phase] = self._progress.add_task(phase, total=num_steps, completed=done)
        self._num_steps[phase] = num_steps
        self._num_played = 0

    def add_episode(self, phase: str, trajectory: Trajectory) -> None:
        """Count an episode of a phase that logs no rows, and print the reason of the first failure."""
        if not trajectory.status.is_evidence and phase not in self._failed:
            self._failed.add(phase)
            self.say(f"note: {phase}: an episode failed: {trajectory.error or trajectory.status}")
        self.watch((trajectory,))
        facts = self._episodes.setdefault(phase, SuccessCount()).add(trajectory)
        self._progress.update(self._bars[phase], advance=1, facts=facts)
        self._num_played += 1
        now = self._clock()
        if not self._console.is_terminal and now - self._said_at >= QUIET_S:
            self.say(f"{phase} {self._num_played}/{self._num_steps[phase]}  {'  '.join(facts)}")

    def watch(self, trajectories: Iterable[Trajectory]) -> None:
        """Say once in a run what episodes show about a setting under which the model cannot do well."""
        for trajectory in trajectories:
            self._notes.watch(trajectory)

    def log(self, phase: str, step: int, values: Metrics) -> None:
        """Store and show one row; ``step`` is the number of finished steps of the phase."""
        append_json_line(self.path, {"phase": phase, "step": step, **values})
        self.logged_step = step if phase == "rl" else self.logged_step
        for name, value in values.items():
            if self._tensorboard is not None and math.isfinite(value):
                self._tensorboard.add_scalar(f"{phase}/{name}", value, step)
        if self._wandb is not None and (phase, step) not in self._in_wandb:
            self._wandb.log({f"{phase}/{name}": value for name, value in values.items()} | {f"{phase}/step": step})
        facts = self._facts = _facts(values)
        if phase in self._bars:
            self._progress.update(self._bars[phase], completed=step, facts=facts)
            between = min(MOST_BETWEEN, max(1, self._num_steps[phase] // NUM_LINES))
            if not self._console.is_terminal and (step % between == 0 or step == self._num_steps[phase]):
                self.say(f"{phase} {step}/{self._num_steps[phase]}  {'  '.join(facts)}")

    def beat(self, beat: Beat) -> None:
        """Show the state of rollouts between two rows, with the facts of the last row."""
        if "rl" in self._bars:
            self._progress.update(
                self._bars["rl"], facts=[*beat.alarms, *self._facts[:2], *beat.load, *self._facts[2:]]
            )

    def forget_after(self, phase: str, step: int) -> None:
        """Delete the rows that a run resumed after ``step`` of ``phase`` will write again.

        TensorBoard's files lose them too. Weights & Biases has no way to take a row back, and is not given it again.
        """

        def stays(row: dict[str, Any]) -> bool:
            if phase == "sft":
                return bool(row["phase"] == "sft" and row["step"] <= step)
            if phase == "start":
                return bool(row["phase"] == "sft")
            if row["phase"] == "eval":  # at step 0 before its checkpoint, later after it
                return bool(row["step"] < max(step, 1))
            return bool(row["phase"] == "sft" or row["step"] <= step)

        rows = read_json_lines(self.path)
        kept = [row for row in rows if stays(row)]
        rewrite_json_lines(self.path, kept)
        if len(kept) == len(rows):
            return
        self._in_wandb = {(row["phase"], row["step"]) for row in rows if not stays(row)}
        if self._tensorboard is not None:
            self._tensorboard.close()
            folder = self._run_dir / "tensorboard"
            forget_events(folder, lambda phase, step: stays({"phase": phase, "step": step}))
            self._tensorboard = tensorboard_writer(folder)


def _facts(values: Metrics) -> list[str]:
    """Return the numbers of a row that are shown; the return only where it tells more than success."""
    hidden = "return" if values.get("return") == values.get("success") else ""
    return [f"{name} {_number(values[name])}" for name in SHOWN if name in values and name != hidden]


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class SilentLog:
    """A log that does nothing, for processes other than the one with the :class:`MetricsLog`."""

    logged_step = 0
    """RL step of the latest row; 0 if there is none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Nothing."""

    def begin(self, phase: str, num_steps: int, done: int = 0) -> None:
        """Nothing."""

    def add_episode(self, phase: str, trajectory: Trajectory) -> None:
        """Nothing."""

    def watch(self, trajectories: Iterable[Trajectory]) -> None:
        """Nothing."""

    def log(self, phase: str, step: int, values: Metrics) -> None:
        """Count the row."""
        self.logged_step = step if phase == "rl" else self.logged_step

    def beat(self, beat: Beat) -> None:
        """Nothing."""

    def forget_after(self, phase: str, step: int) -> None:
        """Nothing."""


Log = MetricsLog | SilentLog


def check_wandb(project: str) -> None:
    """Check early that :class:`MetricsLog` can forward to a Weights & Biases project.

    Raises:
        MissingExtraError: a project is given and wandb is not installed.
    """
    if project:
        require_extra("wandb_project", "wandb", "wandb")


def _wandb_run(run_dir: Path, project: str) -> WandbRun | None:
    """Begin a run of a Weights & Biases project, or resume that of the folder.

    Raises:
        UsageError: wandb refuses, as without an account.
    """
    if not project:
        return None
    import wandb

    # a new run gets an id from wandb: another folder of the same name is another run
    begun = [found[1] for path in (run_dir / "wandb").glob("*run-*") if (found := _WANDB_FOLDER.fullmatch(path.name))]
    try:
        run = wandb.init(
            project=project, name=run_dir.name, dir=str(run_dir), resume="allow", id=begun[0] if begun else None
        )
    except wandb.Error as error:
        raise UsageError(
            f"wandb_project={project}: {gist(error)} (without an account or a network: WANDB_MODE=offline)"
        ) from error
    for phase in _PHASES:
        run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")
    return run
