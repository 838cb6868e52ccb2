"""The report as a file: what it holds, that it is closed in itself, and that nothing in a run can break out of it."""

from __future__ import annotations

import errno
import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym.errors import CorruptDataError, UsageError
from agentgym.evals.episodes import write_json
from agentgym.evals.runner import EvalSummary
from agentgym.report import write_report
from agentgym.report.curves import NUM_COLOURS
from agentgym.report.packing import unpacked
from agentgym.rollout.record import GroupRecord, record_path, write_records
from agentgym.types import (
    ImagePart,
    Message,
    Segment,
    Status,
    Task,
    TextPart,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

HOSTILE = "</script><img src=x onerror=alert(1)><b>&amp;"


def page_of(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


def traces_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="traces">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    traces = json.loads(found.group(1))
    blocks = [unpacked(block) for block in re.findall(r'<script type="text/plain" class="block">(.*?)</script>', page)]
    for member in (m for section in traces["sections"] for group in section["groups"] for m in group["members"]):
        number, place = member["at"]
        member.update(blocks[number][place])
    return traces


def test_a_training_run(run_dir: Path) -> None:
    page = page_of(run_dir)
    for text in ("mugs-001", "training run", "Mugs-v0", "num_mugs=3", "gigpo", "success before", "success after"):
        assert text in page
    assert "95 % interval 5.7% to 51.0%, 10 episodes<" in page  # Wilson's interval of 2 in 10
    captions = re.findall(r"<figcaption>([^<]+)", page)
    assert captions[:3] == ["success of valid episodes", "how episodes ended", "where the time went"]
    for caption in ("return", "turns", "loss", "entropy", "turns with an anchor", "my_own_number", "loss on actions"):
        assert caption in captions
    assert page.count('<div class="chart"') == 1 + 1 + 11 + 1 + 2  # success, statuses, small multiples, own, warm start
    assert page.count('class="whisker"') == 2, "one for each evaluation"
    assert 'aria-label="step 12: completed 52, truncated_turns 12"' in page
    assert 'aria-label="loss on actions: 3 at step 1 to 0.15 at step 20, between 0.15 and 3"' in page
    assert "rollout <span>56.5%, 15.6 s</span>" in page


def test_numbers_of_an_evaluation_come_with_their_size(tmp_path: Path) -> None:
    interval = {"success_low": 0.207, "success_high": 1.0, "mean_turns": 2.0}
    summary = EvalSummary(
        suite_or_env="Mugs-v0", policy="random", num_episodes=9, num_failed=1, success=0.5, success_low=0.2,
        success_high=0.8, mean_return=0.5, mean_turns=2.0, mean_tokens=0.0, statuses={"completed": 8}, run_dir="",
        num_tasks=2, repeats={"pass_at": {"1": 0.5}},
        by_type={
            "clean": {"num_episodes": 1.0, "success": 1.0, **interval},
            "heat": {"num_episodes": 7.0, "success": 0.4, **interval},
        },
    )  # fmt: skip
    (tmp_path / "episodes.jsonl").touch()
    write_json(tmp_path / "summary.json", asdict(summary))
    write_json(tmp_path / "config.json", {"eval": {"env": "Mugs-v0", "policy": "random"}})
    page = page_of(tmp_path)
    assert "95 % interval 20.0% to 80.0%, 8 episodes of 2 tasks, 1 failed" in page
    assert [re.sub(r"<[^>]+>", "", row) for row in re.findall(r"<td>(?:100|40)%.*?</td>", page)] == [
        "100% 20.7% to 100.0%, 1 episode", "40% 20.7% to 100.0%, 7 episodes"
    ]  # fmt: skip


def test_it_is_closed_in_itself(run_dir: Path) -> None:
    page = page_of(run_dir).replace("/*! https://github.com/leeoniya/uPlot (v1.6.32) */", "")
    assert not re.search(r"https?://|<link|<script[^>]+src|<iframe|@import|url\(", page)
    assert "default-src 'none'" in page
    assert not (run_dir / "report.html.partial").exists()


def test_nothing_breaks_out(run_dir: Path, tmp_path: Path, make_record: Callable[..., GroupRecord]) -> None:
    config = {"recipe": HOSTILE, "env": {"id": HOSTILE, "kwargs": {HOSTILE: HOSTILE}}, "seed": 0}
    (run_dir / "config.json").write_text(json.dumps(config))
    with open(run_dir / "metrics.jsonl", "a") as out:
        out.write(json.dumps({"phase": "rl", "step": 13, HOSTILE.replace("/", ""): 1.0, f"time/{HOSTILE}": 2.0}) + "\n")
    group = make_record(0).group
    task = Task(id=HOSTILE, split="train", seed=0, data={HOSTILE: HOSTILE})
    said = replace(
        group.trajectories[0].turns[0],
        action=Message("assistant", HOSTILE),
        replies=(Message("user", (TextPart(HOSTILE), ImagePart(HOSTILE))),),
        state_key=HOSTILE,
    )
    episode = replace(group.trajectories[0], task=task, segments=(Segment((said,)),), error=HOSTILE)
    hostile = GroupRecord(group=replace(group, task=task, trajectories=(episode,)), dropped=HOSTILE)
    write_records(record_path(run_dir, 11), [hostile])
    renamed = run_dir.rename(tmp_path / "<img src=y onerror=alert(2)>")
    page = page_of(renamed)
    assert "<img" not in page
    assert page.count("</script>") == 2 + page.count('<script type="text/plain" class="block">')
    last = next(s for s in traces_of(page)["sections"] if s["label"] == "step 12")
    member = last["groups"][0]["members"][0]
    assert (member["task"], member["turns"][0]["key"], member["error"]) == (HOSTILE, HOSTILE, HOSTILE)


def test_screenshots_and_where_a_call_acted(run_dir: Path, make_record: Callable[..., GroupRecord]) -> None:
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
    record = make_record(0)
    episode = record.group.trajectories[0]
    said = (Message("tool", (ImagePart(pixel),), result=ToolResult("", "click", "0", box=(3, 4, 50, 20))),)
    turn = replace(episode.turns[0], replies=said)
    shown = replace(episode, observation=(Message("user", (ImagePart(pixel),)),), segments=(Segment((turn,)),))
    write_records(record_path(run_dir, 11), [GroupRecord(group=replace(record.group, trajectories=(shown,)))])
    last = next(s for s in traces_of(page_of(run_dir))["sections"] if s["label"] == "step 12")
    member = last["groups"][0]["members"][0]
    assert [image["size"] for image in member["opening_images"]] == [[1, 1]]
    (reply,) = member["turns"][0]["replies"]
    assert (reply["box"], len(reply["images"])) == ([3, 4, 50, 20], 1)


def test_credit_and_tokens_of_a_turn(run_dir: Path) -> None:
    traces = traces_of(page_of(run_dir))
    labels = [section["label"] for section in traces["sections"]]
    assert labels == [*(f"step {at}" for at in range(1, 13)), "evaluation before", "evaluation after"]
    assert traces["scale"] == 1.5
    first = traces["sections"][0]
    assert [group["title"] for group in first["groups"]] == [
        "task train-1",
        "task train-2",
        "task train-3",
        "task train-4",
        "task train-5",
        "task train-0",
    ]
    member = first["groups"][0]["members"][0]
    assert (member["success"], member["return"], member["seed"]) == (True, pytest.approx(1.3), str(2**62))
    assert member["opening"] == "Put a mug on the shelf."
    assert [turn["anew"] for turn in member["turns"]] == [False, False, True]
    turn = member["turns"][1]
    assert "".join(turn["tokens"]) == turn["action"] == "take: mug 1"
    assert turn["logprobs"] == [-3.0, *[-0.01] * 6, -3.0, *[-0.01] * 3]
    assert (turn["trainer"][:2], turn["gap"], turn["trained"]) == ([None, -0.012], [0.002, 0.002], 1)
    assert turn["entropies"][:3] == [None, 0.3, 0.6]
    assert (turn["thinking"], turn["num_thinking"]) == ("", 0)
    assert (turn["advantage"], turn["to_go"], turn["anchor"], turn["anchor_size"]) == (1.5, 1.0, 1, 3)
    assert (turn["valid"], turn["malformed"], turn["replies"][0]["error"]) == (False, ["expected a name"], "tool_error")
    assert member["turns"][2]["parts"] == [["step", "process", 0.1], ["outcome", "outcome", 1.0]]


def test_gates_say_what_held_rewards_back(run_dir: Path) -> None:
    won, lost, _ = traces_of(page_of(run_dir))["sections"][0]["groups"][0]["members"]
    gated = ["process", "format", "cost"]
    outcome: dict[str, Any] = {"roles": ["outcome"], "needed": "> 0", "gated": gated}
    assert won["gates"] == [outcome | {"total": 1.0, "clears": True}]
    assert lost["gates"] == [outcome | {"total": 0.0, "clears": False}]
    assert [turn["counted"] for turn in won["turns"]] == [[True], [True], [True, True]]
    assert [turn["counted"] for turn in lost["turns"]] == [[False]] * 3
    (run_dir / "config.json").write_text(json.dumps({"credit": {"estimator": "gigpo"}}))
    won, *_ = traces_of(page_of(run_dir))["sections"][0]["groups"][0]["members"]
    assert (won["gates"], won["turns"][0]["counted"]) == ([], None)


def test_what_was_not_recorded_of_tokens_is_missing(run_dir: Path, make_record: Callable[..., GroupRecord]) -> None:
    for path in (run_dir / "rollouts").glob("scores-*"):
        path.unlink()
    turn = traces_of(page_of(run_dir))["sections"][0]["groups"][0]["members"][0]["turns"][0]
    assert "entropies" not in turn and "trainer" not in turn and turn["gap"] is None
    record = make_record(1)
    sizes = [len(turn.completion.token_ids) for member in record.group.trajectories for turn in member.turns]
    before_update = replace(record, columns={"token_entropy": [0.5 + at for at in range(sum(sizes))]})
    write_records(record_path(run_dir, 0), [before_update])
    first, second, _ = traces_of(page_of(run_dir))["sections"][0]["groups"][0]["members"]
    assert first["turns"][1]["entropies"][0] == 0.5 + sizes[0]
    assert second["turns"][0]["entropies"][0] == 0.5 + sum(sizes[:3])
    dropped = traces_of(page_of(run_dir))["sections"][1]["groups"][-1]
    assert dropped["dropped"] and {turn["trained"] for turn in dropped["members"][0]["turns"]} == {0}
    evaluated = traces_of(page_of(run_dir))["sections"][-1]["groups"][0]["members"][0]["turns"][0]
    assert evaluated["trained"] is None, "an evaluation has no loss mask"


def test_scores_that_cannot_be_read_are_named(run_dir: Path) -> None:
    (run_dir / "rollouts" / "scores-000003.jsonl.gz").write_bytes(b"plain")
    with pytest.raises(CorruptDataError, match=r"scores-000003\.jsonl\.gz cannot be read"):
        write_report(run_dir)


def test_thinking_is_told_apart_from_the_answer(run_dir: Path, make_record: Callable[..., GroupRecord]) -> None:
    record = make_record(0, outcomes=(True,))
    (trajectory,) = record.group.trajectories
    first = trajectory.segments[0].turns[0]
    thought = replace(
        first,
        action=Message("assistant", "<think>Which?</think>take: mug 1", thinking="Which?", answer="take: mug 1"),
        num_thinking_tokens=4,
    )
    segments = (replace(trajectory.segments[0], turns=(thought, *trajectory.segments[0].turns[1:])),)
    changed = replace(record, group=replace(record.group, trajectories=(replace(trajectory, segments=segments),)))
    step = min(int(path.name[5:11]) for path in (run_dir / "rollouts").glob("step-*"))
    write_records(record_path(run_dir, step), [changed])
    turn = traces_of(page_of(run_dir))["sections"][0]["groups"][0]["members"][0]["turns"][0]
    assert (turn["thinking"], turn["num_thinking"], turn["action"]) == ("Which?", 4, "take: mug 1")


def test_what_was_done_in_place_of_an_action(run_dir: Path, make_record: Callable[..., GroupRecord]) -> None:
    record = make_record(0, outcomes=(True,))
    (member,) = record.group.trajectories
    *before, last = member.segments
    *turns, turn = last.turns
    changed = Segment((*turns, replace(turn, played=Message("assistant", "put: " + HOSTILE))))
    episode = replace(member, segments=(*before, changed))
    step = min(int(path.name[5:11]) for path in (run_dir / "rollouts").glob("step-*"))
    group = replace(record.group, trajectories=(episode,))
    write_records(record_path(run_dir, step), [replace(record, group=group)])
    shown = traces_of(page_of(run_dir))["sections"][0]["groups"][0]["members"][0]["turns"]
    assert [turn["played"] for turn in shown] == [None] * (len(shown) - 1) + ["put: " + HOSTILE]


def test_players_of_a_match_are_told_apart(run_dir: Path, make_record: Callable[..., GroupRecord]) -> None:
    def players() -> list[list[int | None]]:
        groups = traces_of(page_of(run_dir))["sections"][0]["groups"]
        return [[member["player"] for member in group["members"]] for group in groups]

    record = make_record(0, outcomes=(True, False))
    first, second = record.group.trajectories
    match = replace(record, group=replace(record.group, trajectories=(first, replace(second, player=1))))
    step = min(int(path.name[5:11]) for path in (run_dir / "rollouts").glob("step-*"))
    write_records(record_path(run_dir, step), [match, make_record(1, outcomes=(True, False))])
    assert players() == [[1, 2], [None, None]]


def test_samples_show_successes_and_failures(run_dir: Path) -> None:
    traces = traces_of(page_of(run_dir))
    before = next(section for section in traces["sections"] if section["label"] == "evaluation before")
    members = before["groups"][0]["members"]
    assert [member["success"] for member in members][:5] == [True, False, True, False, False]


def test_without_a_tokenizer_the_text_stands_alone(run_dir: Path) -> None:
    (run_dir / "model" / "tokenizer.json").unlink()
    traces = traces_of(page_of(run_dir))
    turn = traces["sections"][0]["groups"][0]["members"][0]["turns"][0]
    assert (turn["tokens"], turn["action"]) == (None, "take: mug 1")


def test_a_run_that_goes_on_has_the_text_of_its_tokens(run_dir: Path) -> None:
    (run_dir / "model").rename(run_dir / "tokenizer")  # the model is saved at the end
    assert traces_of(page_of(run_dir))["has_tokens"]


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"phase": "sft", "step": 1, "loss": 3.0}\n{"phase": "sft", "st')
    page = page_of(tmp_path)
    assert "Warm start" in page
    assert "No episodes are recorded." in page


def test_a_run_that_has_not_finished_shows_its_steps(run_dir: Path) -> None:
    """Its page looked like that of a run that has no evaluation at the end."""
    config = json.loads((run_dir / "config.json").read_text())
    pages = []
    for num_steps in (12, 20):
        (run_dir / "config.json").write_text(json.dumps(config | {"num_steps": num_steps}))
        pages.append(write_report(run_dir).read_text(encoding="utf-8"))
    assert ["steps so far" in page for page in pages] == [False, True] and "12 of 20" in pages[1]


def test_numbers_that_are_not_finite_do_not_break_a_curve(tmp_path: Path) -> None:
    rows = [{"phase": "rl", "step": at, "success": 0.5, "loss": float("nan") if at == 3 else 1.0} for at in range(20)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "nan" not in "".join(re.findall(r'data-chart="([^"]*)"', page_of(tmp_path))).lower()


def test_an_evaluations_folder(tmp_path: Path, make_eval: Callable[..., None]) -> None:
    make_eval(tmp_path / "oracle-eval", num_won=9, policy="oracle")
    page = page_of(tmp_path / "oracle-eval")
    for text in ("oracle-eval", "<dd>oracle</dd>", "<dd>Mugs-v0</dd>", "90%"):
        assert text in page
    assert "Learning" not in page
    members = traces_of(page)["sections"][0]["groups"][0]["members"]
    assert [member["task"] for member in members] == [f"test-{at}" for at in range(10)]
    assert "advantage" not in members[0]["turns"][0]


def test_an_evaluation_that_was_killed(tmp_path: Path, make_eval: Callable[..., None]) -> None:
    make_eval(tmp_path, num_won=1)
    (tmp_path / "summary.json").unlink()
    assert "10 of 10 episodes" in page_of(tmp_path)


def test_episodes_lost_to_the_infrastructure(run_dir: Path, make_trajectory: Callable[..., Trajectory]) -> None:
    task = Task(id="train-0", split="train", seed=0)
    lost = make_trajectory(task, won=False, segments=(), success=None, status=Status.ENV_ERROR, error="it broke")
    group = TrajectoryGroup(ordinal=0, task=task, trajectories=(lost,))
    write_records(record_path(run_dir, 0), [GroupRecord(group=group, dropped="too_few_valid")])
    member = traces_of(page_of(run_dir))["sections"][0]["groups"][0]["members"][0]
    assert (member["success"], member["return"], member["error"], member["turns"]) == (None, None, "it broke", [])


def incompressible(turn: Turn, count: int) -> tuple[Turn, ...]:
    """Return turns whose replies are 10,000 letters each that no compression makes much fewer."""
    rng = np.random.default_rng(0)
    said = (rng.integers(ord("A"), ord("Z"), 10_000, dtype=np.uint8).tobytes().decode() for _ in range(count))
    return tuple(replace(turn, replies=(Message("user", text),)) for text in said)


def test_the_file_stays_small_however_long_the_run(run_dir: Path, make_record: Callable[..., GroupRecord]) -> None:
    group = make_record(0).group
    for step in range(5):
        long = replace(group.trajectories[0], segments=(Segment(incompressible(group.trajectories[0].turns[0], 60)),))
        big = GroupRecord(group=replace(group, trajectories=(long,) * 4))
        write_records(record_path(run_dir, step), [big] * 4)
    assert write_report(run_dir).stat().st_size < 14_000_000
    page = write_report(run_dir, megabytes=3).read_text(encoding="utf-8")
    assert 1_500_000 < len(page) < 4_000_000
    assert "4,000 characters more" in json.dumps(traces_of(page))
    assert f"of 12 steps are in this page; agentgym view {run_dir} --megabytes N holds more" in page


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rollouts/step-000000.jsonl.gz", b"\x1f\x8b\x08 cut", "cannot be read"),
        ("rollouts/step-000000.jsonl.gz", b"plain text", "cannot be read"),
        ("metrics.jsonl", b"{}\n{}\n", "line 1: expected an object with phase and step"),
        ("metrics.jsonl", b"nonsense\n{}\n", "line 1: not JSON"),
        ("config.json", b"{", "is not JSON"),
        ("config.json", b"[]", "expected an object"),
        ("model/tokenizer.json", b"{}", "is not a tokenizer"),
        ("eval/before/summary.json", b"{}", "is not an evaluation's summary"),
        ("eval/before/episodes.jsonl.gz", b"", "is empty"),
    ],
)
def test_corrupt_files_are_named(run_dir: Path, name: str, content: bytes, said: str) -> None:
    (run_dir / name).write_bytes(content)
    with pytest.raises(CorruptDataError, match=said) as raised:
        write_report(run_dir)
    assert Path(name).name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="is not a run: it has neither"):
        write_report(tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        write_report(tmp_path / "nowhere")


def test_a_page_says_what_it_leaves_out(run_dir: Path, make_record: Callable[..., GroupRecord]) -> None:
    assert "steps are in this page" not in page_of(run_dir)
    group = make_record(0).group
    for step in range(12):
        long = replace(group.trajectories[0], segments=(Segment(incompressible(group.trajectories[0].turns[0], 40)),))
        write_records(record_path(run_dir, step), [GroupRecord(group=replace(group, trajectories=(long,)))])
    page = write_report(run_dir, megabytes=1).read_text(encoding="utf-8")
    sections = traces_of(page)["sections"]
    steps = [section["label"] for section in sections if not section["is_eval"]]
    assert f"{len(steps)} of 12 steps are in this page" in page
    assert 1 < len(steps) < 12 and steps[0] == "step 1" and "step 12" in steps
    num_episodes = [len(section["groups"][0]["members"]) for section in sections if section["is_eval"]]
    assert len(num_episodes) == 2 and all(num_episodes), "both evaluations have their share"


def test_suites_are_one_page(tmp_path: Path, make_eval: Callable[..., None]) -> None:
    plan = {"suites": [{"name": "games"}, {"name": "mugs"}], "policies": ["oracle", "random"]}
    (tmp_path / "config.json").write_text(json.dumps({"eval_suites": plan}))
    for policy, num_won in (("oracle", 10), ("random", 3)):
        make_eval(tmp_path / "mugs" / policy, num_won=num_won)
        (tmp_path / "mugs" / policy / "suite.json").write_text("{}")
        for part in ("maze-v0", "wordle-v0"):
            make_eval(tmp_path / "games" / policy / part, num_won=num_won)
        for name, text in (("suite.json", "{}"), ("summary.json", None)):
            given = text or (tmp_path / "games" / policy / "maze-v0" / name).read_text()
            (tmp_path / "games" / policy / name).write_text(given)
    page = page_of(tmp_path)
    rows = re.findall(r"<dt>(\w+/[^<]*)</dt>", page)
    assert rows == ["games/oracle: 100%", "games/random: 30%", "mugs/oracle: 100%", "mugs/random: 30%"]
    assert "<dd>games, mugs</dd>" in page and "<dd>oracle, random</dd>" in page
    labels = [section["label"].removeprefix("evaluation ") for section in traces_of(page)["sections"]]
    games = [f"games/{policy}/{part}" for policy in ("oracle", "random") for part in ("maze-v0", "wordle-v0")]
    assert labels == [*games, "mugs/oracle", "mugs/random"]
    one = page_of(tmp_path / "mugs" / "random")
    assert "evaluation</p>" in one


def test_a_report_beside_a_run_that_is_read_only(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path for path in run_dir.rglob("*")}
    out = tmp_path / "elsewhere.html"
    assert write_report(run_dir, out) == out and "mugs-001" in out.read_text()
    assert {path for path in run_dir.rglob("*")} == before, "nothing is written into the run"

    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("agentgym.report.page.replace_text", refuse)
    with pytest.raises(UsageError, match=r"report\.html cannot be written \(Read-only file system\).*--out FILE"):
        write_report(run_dir)


def test_no_two_series_have_one_colour(run_dir: Path) -> None:
    row = {"phase": "rl", "step": 13} | {f"status/{status.value}": 1.0 for status in Status}
    row |= {f"time/part{at}_s": 1.0 for at in range(10)}
    with open(run_dir / "metrics.jsonl", "a") as out:
        out.write(json.dumps(row) + "\n")
    page = page_of(run_dir)
    colours = re.findall(r"--(c\d+): (#\w+)", page)
    light, dark = (dict(colours[at : at + NUM_COLOURS]) for at in (0, NUM_COLOURS))
    for legend in re.findall(r'<ul class="legend">(.*?)</ul>', page, re.DOTALL):
        parts = re.findall(r'<i class="part-(\d+)">', legend)
        assert len(parts) == len(set(parts)) >= 7
        for palette in (light, dark):
            assert len({palette[f"c{part}"] for part in parts}) == len(parts)
    assert len(set(light.values())) == len(set(dark.values())) == NUM_COLOURS


def test_the_configuration_is_in_the_page(run_dir: Path) -> None:
    shown = re.search(r"<summary>configuration</summary><pre>(.*?)</pre>", page_of(run_dir), re.DOTALL)
    assert shown is not None
    assert json.loads(html.unescape(shown.group(1))) == json.loads((run_dir / "config.json").read_text())


def test_another_run_beside_this_one(run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "mugs-002"
    shutil.copytree(run_dir, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"seed": 8, "credit": {"estimator": "grpo"}}))
    page = write_report(run_dir, tmp_path / "both.html", beside=other).read_text(encoding="utf-8")
    assert "Beside mugs-002" in page and "3 settings differ" in page
    assert re.search(r"<td>credit.estimator</td><td>&#34;gigpo&#34;</td><td>&#34;grpo&#34;</td>", page)
    charts = [json.loads(html.unescape(text)) for text in re.findall(r'data-chart="([^"]*)"', page)]
    lines = [[one["style"] for one in chart["series"]] for chart in charts]
    assert sum(styles.count("dashed") == styles.count("line") == 1 for styles in lines) > 10, "each has its sister"
    assert "dashed and hollow: mugs-002" in page
    assert "mugs-002, evaluation" in {one["name"] for chart in charts for one in chart["series"]}
    assert re.search(r"<td>\+0.0 pp</td><td>[^<]+</td><td>1</td><td>10</td>", page), "the same episodes: no difference"
    sections = traces_of(page)["sections"]
    assert {section["of"] for section in sections} == {"", "mugs-002"}
    assert [s["label"].removeprefix("mugs-002: ") for s in sections if s["of"]] == [
        s["label"] for s in sections if not s["of"]
    ]


def test_what_cannot_stand_beside_a_run(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the run itself"):
        write_report(run_dir, beside=run_dir)
    with pytest.raises(UsageError, match="no folder"):
        write_report(run_dir, beside=tmp_path / "none")
    twin = tmp_path / "elsewhere" / run_dir.name
    shutil.copytree(run_dir, twin)
    shutil.rmtree(twin / "eval")
    page = write_report(run_dir, tmp_path / "both.html", beside=twin).read_text(encoding="utf-8")
    assert f"Beside {twin}" in page, "the path, where the names are alike"
    assert "Their settings are the same." in page and "has no finished evaluation" in page
