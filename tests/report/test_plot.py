"""Figures of training runs: which runs become one line, what the lines hold, what the file is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym.errors import UnknownNameError, UsageError
from agentgym.report.plot import plot

pytest.importorskip("matplotlib")


def make(folder: Path, seed: int, rate: float, *, steps: int = 20, tokens: int = 100, **credit: Any) -> Path:
    folder.mkdir(parents=True)
    config = {"recipe": "demo", "seed": seed, "num_threads": 1 + seed, "env": {"id": "x"}, "credit": credit}
    (folder / "config.json").write_text(json.dumps(config))
    rows: list[dict[str, Any]] = [{"phase": "eval", "step": 0, "success": 0.1}]
    for step in range(1, steps + 1):
        counts = {"status/completed": 6, "status/truncated_turns": 2, "time/train_s": 30.0, "sampled_tokens": tokens}
        rows.append({"phase": "rl", "step": step, "success": rate * step / steps, "entropy": None, **counts})
    rows.append({"phase": "eval", "step": steps, "success": rate})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    rates = {"grpo": (0.3, 0.4, 0.5), "gigpo": (0.6, 0.7, 0.8)}
    return [
        make(tmp_path / f"{name}-{seed}", seed, rate, estimator=name)
        for name, of_name in rates.items()
        for seed, rate in enumerate(of_name)
    ]


def test_seeds_are_one_line_with_an_interval(runs: list[Path], tmp_path: Path) -> None:
    grpo, gigpo = plot(runs, tmp_path / "fig.svg")
    assert (grpo.label, gigpo.label) == ("estimator=grpo", "estimator=gigpo")
    assert (grpo.num_runs, len(grpo.xs)) == (3, 20)
    assert grpo.mean[-1] == pytest.approx(0.4)
    assert grpo.high[-1] - grpo.mean[-1] == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-3)
    svg = (tmp_path / "fig.svg").read_text()
    assert ">estimator=gigpo (3 seeds, 95 % interval)<" in svg  # text, which a paper can search
    first = svg
    plot(runs, tmp_path / "fig.svg")
    assert (tmp_path / "fig.svg").read_text() == first


@pytest.mark.parametrize(
    ("axis", "last"), [("steps", 20.0), ("rollouts", 160.0), ("tokens", 2000.0), ("minutes", 10.0)]
)
def test_axes(runs: list[Path], tmp_path: Path, axis: Any, last: float) -> None:
    (line,) = plot(runs[:1], tmp_path / "fig.pdf", axis=axis)
    assert line.xs[-1] == pytest.approx(last)
    assert (tmp_path / "fig.pdf").read_bytes().startswith(b"%PDF")


def test_runs_of_different_length_are_read_where_all_were(tmp_path: Path) -> None:
    runs = [make(tmp_path / str(seed), seed, 1.0, tokens=tokens) for seed, tokens in enumerate((100, 200))]
    (line,) = plot(runs, tmp_path / "fig.png", axis="tokens")
    assert (line.xs[0], line.xs[-1]) == (200.0, 2000.0)  # from where both have begun to where both still were
    assert np.allclose(line.high, line.xs / 2000)
    assert np.allclose(line.low, line.xs / 4000)  # of two runs their range
    assert (tmp_path / "fig.png").read_bytes().startswith(b"\x89PNG")


def test_held_out_and_smoothed(runs: list[Path], tmp_path: Path) -> None:
    (line,) = plot(runs[:3], tmp_path / "fig.svg", held_out=True, axis="rollouts")
    assert list(line.xs) == [0.0, 160.0]
    assert line.mean == pytest.approx([0.1, 0.4])
    (smooth,) = plot(runs[:1], tmp_path / "fig.svg", smooth=20)
    assert smooth.mean[-1] == pytest.approx(0.3 * 10.5 / 20)
    assert smooth.mean[0] == pytest.approx(0.3 / 20)


def test_labels(runs: list[Path], tmp_path: Path) -> None:
    lines = plot(runs, tmp_path / "fig.svg", labels=["A", "B"])
    assert [line.label for line in lines] == ["A", "B"]
    with pytest.raises(UsageError, match=r"1 label for 2 lines \(estimator=grpo, estimator=gigpo\)"):
        plot(runs, tmp_path / "fig.svg", labels=["A"])
    far = make(tmp_path / "far", 0, 0.5, estimator="grpo", note="so many words that no legend could hold them all")
    lines = plot([runs[0], far], tmp_path / "fig.svg")
    assert [line.label for line in lines] == ["grpo-0", "far"]


def test_what_cannot_be_drawn_is_said(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in \.svg"):
        plot(runs, tmp_path / "fig.gif")
    with pytest.raises(UnknownNameError, match="did you mean 'success'"):
        plot(runs, tmp_path / "fig.svg", metric="succes")
    with pytest.raises(UsageError, match="never measured entropy"):
        plot(runs, tmp_path / "fig.svg", metric="entropy")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metrics.jsonl").write_text("")
    with pytest.raises(UsageError, match="has no RL step"):
        plot([tmp_path / "new"], tmp_path / "fig.svg")
    assert not (tmp_path / "fig.svg").exists()
