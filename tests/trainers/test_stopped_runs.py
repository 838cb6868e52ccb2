"""Runs that an error stops: no whole step is lost, and the run's folder holds the error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from testkit.counting_runs import ENV_FILE, config, trained_ordinals, weights

from agentgym.errors import RunStoppedError
from agentgym.report import write_report
from agentgym.rollout import journal
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.config.train import EnvConfig, TrainConfig
from agentgym.trainers.reporting.metrics import MetricsLog
from agentgym.trainers.train import train
from agentgym.trainers.types import Metrics


@pytest.fixture
def breakable(tmp_path: Path) -> tuple[TrainConfig, Path]:
    """A short run on an environment that raises while a file is there, and that file."""
    broken = tmp_path / "broken"
    source = ENV_FILE.read_text(encoding="utf-8").replace(
        "        self.at, ",
        f'        if Path({str(broken)!r}).exists():\n            raise RuntimeError("no scissors")\n        self.at, ',
    )
    path = tmp_path / "breakable.py"
    source = source.replace("Counting-v0", "Breakable-v0")  # the name stays registered for other tests of this process
    path.write_text(source.replace("\n\nfrom agentgym", "\n\nfrom pathlib import Path\n\nfrom agentgym", 1))
    sft = SftConfig(num_demos=320, num_epochs=2, batch_size=8)
    return replace(config(num_steps=4, checkpoint_every=99), env=EnvConfig(id=f"{path}:Breakable-v0"), sft=sft), broken


@pytest.fixture
def break_after(monkeypatch: pytest.MonkeyPatch, breakable: tuple[TrainConfig, Path]) -> Callable[[int], None]:
    """A function that breaks the environment once a step of RL is done."""

    def arm(last_whole: int) -> None:
        log = MetricsLog.log

        def log_and_break(self: MetricsLog, phase: str, step: int, values: Metrics) -> None:
            log(self, phase, step, values)
            if (phase, step) == ("rl", last_whole):
                breakable[1].touch()

        monkeypatch.setattr(MetricsLog, "log", log_and_break)

    return arm


def test_a_stopped_run_loses_no_whole_step(
    breakable: tuple[TrainConfig, Path],
    break_after: Callable[[int], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, broken = breakable
    whole = train(made, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    break_after(2)
    with pytest.raises(RunStoppedError, match=r"12 of 12 episodes failed .*no scissors"):
        train(made, stopped)
    assert f"step 2 is saved: agentgym train --resume {stopped}" in capsys.readouterr().err.replace("\n", "")
    assert [path.name for path in sorted((stopped / "checkpoints").iterdir())] == ["rl-000000", "rl-000002"]

    line = journal.last_stop(stopped)
    assert (line["phase"], line["step"]) == ("rl", 2) and "RuntimeError: no scissors" in line["stopped"]
    page = write_report(stopped).read_text(encoding="utf-8")
    assert "stopped after rl step 2: 12 of 12 episodes failed because of the infrastructure" in page

    broken.unlink()
    result = train(made, stopped, resume=True)
    assert result.steps_trained == whole.steps_trained > 0
    assert weights(stopped) == weights(tmp_path / "whole")
    assert trained_ordinals(stopped) == trained_ordinals(tmp_path / "whole")
    assert journal.last_stop(stopped) == {} and len(journal.read(stopped)) == 2
    assert "stopped after" not in write_report(stopped).read_text(encoding="utf-8")


def test_an_error_before_the_first_step_is_kept(breakable: tuple[TrainConfig, Path], tmp_path: Path) -> None:
    made, broken = breakable
    train(replace(made, num_steps=0), tmp_path / "run")
    broken.touch()
    with pytest.raises(RunStoppedError, match="no scissors"):
        train(replace(made, num_steps=1), tmp_path / "run", resume=True)
    assert [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())] == ["rl-000000"]
    assert journal.last_stop(tmp_path / "run")["step"] == 0
