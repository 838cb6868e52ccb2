"""The report in Chromium: colours of tokens, gates, siblings, charts, keys, and what a link names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgym.envs.gui.chromium import INSTALL, has_chromium
from agentgym.evals.episodes import EpisodeFiles
from agentgym.evals.prices import Price
from agentgym.report import write_report
from agentgym.types import Task, Trajectory, TrajectoryGroup

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

pytestmark = [pytest.mark.gui, pytest.mark.skipif(not has_chromium(), reason=f"needs Chromium: {INSTALL}")]
WAYS = ("advantage", "logprob", "entropy", "gap", "mask", "none")


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; an error in it fails the test."""
    errors: list[str] = []
    pages: list[Any] = []

    def open_page(path: Path, anchor: str = "", scheme: str = "light") -> Any:
        page = chromium.new_page(viewport={"width": 1300, "height": 900}, color_scheme=scheme)
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri() + anchor)
        page.wait_for_selector(".turn")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert errors == []


def colours(page: Any) -> list[str]:
    """Return the colours of the first turn's tokens."""
    first = page.locator("pre.action").first
    found: list[str] = first.evaluate("pre => [...pre.children].map((span) => span.style.backgroundColor)")
    return found


def test_tokens_are_coloured_by_what_is_chosen(run_dir: Path, opened: Callable[..., Any]) -> None:
    page = opened(write_report(run_dir))
    assert page.locator("#colour option").evaluate_all("all => all.map((one) => one.value)") == list(WAYS)
    assert page.locator("#colour").input_value() == "advantage"
    assert len(set(colours(page))) == 1, "all tokens of the turn have its advantage"
    page.select_option("#colour", "logprob")
    expect(page.locator("#scale")).to_contain_text("p near 0")
    assert len(set(colours(page))) == 2 and colours(page)[0] != colours(page)[1], (
        "the first and eighth were less likely"
    )
    page.select_option("#colour", "entropy")
    expect(page.locator("#scale")).to_contain_text("nats")
    assert colours(page)[0] == "" and len(set(colours(page)[1:])) > 5, "the first was not trained: no colour, not zero"
    told = page.locator("pre.action span").nth(1).get_attribute("title")
    assert told == (
        "advantage +1.5, p = 0.99, log p = −0.01, entropy 0.3 nats, "
        "trainer and engine differ by 0.002 (log-probability), trained"
    )
    page.select_option("#colour", "gap")
    assert colours(page)[0] == "" and len(set(colours(page)[1:])) == 1
    page.select_option("#colour", "mask")
    expect(page.locator("#scale")).to_contain_text("not trained")
    page.select_option("#colour", "none")
    assert set(colours(page)) == {""}


def test_what_is_missing_is_said(run_dir: Path, opened: Callable[..., Any]) -> None:
    page = opened(write_report(run_dir / "eval" / "after"))
    assert page.locator("#colour").input_value() == "logprob"
    for way in ("entropy", "gap", "mask", "advantage"):
        page.select_option("#colour", way)
        expect(page.locator("#scale")).to_contain_text("not recorded in this episode")
        assert set(colours(page)) == {""}


def test_a_link_names_the_colouring(run_dir: Path, opened: Callable[..., Any]) -> None:
    path = write_report(run_dir)
    page = opened(path)
    page.keyboard.press("c")
    page.keyboard.press("c")
    expect(page.locator("#colour")).to_have_value("entropy")
    page.keyboard.press("j")
    address = page.evaluate("location.hash")
    assert address.endswith("/2/entropy")
    again = opened(path, address)
    expect(again.locator("#colour")).to_have_value("entropy")
    expect(again.locator(".turn.here .about > b")).to_have_text("turn 2")


def test_gates_siblings_and_times_of_an_episode(run_dir: Path, opened: Callable[..., Any]) -> None:
    page = opened(write_report(run_dir))
    expect(page.locator(".gate")).to_have_text("gate openoutcome is 1, needed > 0: process, format, cost count")
    page.keyboard.press("n")
    expect(page.locator(".gate")).to_contain_text("gate closed")
    expect(page.locator(".gate")).to_contain_text("do not count")
    expect(page.locator(".chip.held").first).to_have_text("step +0.1")
    expect(page.locator(".spent")).to_contain_text("model 48 ms")
    expect(page.locator(".spent")).to_contain_text("waiting 12 ms")
    page.locator("button.chip", has_text="anchor 1 × 3").click()
    peers = page.locator(".peers tr", has_text="take: mug 1")
    expect(peers).to_have_count(3)
    peers.first.click()
    expect(page.locator("#episode h3")).to_contain_text("success")


def test_other_attempts_and_the_cost_of_an_episode(
    tmp_path: Path, make_trajectory: Callable[..., Trajectory], opened: Callable[..., Any]
) -> None:
    task = Task(id="test-0", split="test", seed=0)
    first, last = make_trajectory(task, won=False), make_trajectory(task)
    chosen = replace(last, attempts=(first,), attempt=1)
    files = EpisodeFiles(tmp_path, resume=False, price=Price(input=1000.0, output=0.0))
    files.add(TrajectoryGroup(ordinal=0, task=task, trajectories=(chosen,)))
    files.finish()
    (row,) = files.rows.values()
    page = opened(write_report(tmp_path))
    expect(page.locator("#episode")).to_contain_text("attempt 2 of 2, which counts")
    expect(page.locator("#episode")).to_contain_text(f"cost {row['cost']:.3g}")
    other = page.locator("details", has_text="attempt 1, which does not count: 3 turns, truncated turns ✗ no success")
    expect(other.locator(".turn")).to_have_count(0)
    other.locator("summary").click()
    expect(other.locator(".turn")).to_have_count(3)
    expect(other.locator("pre.action").first).to_have_text("take: mug 1")


def test_turns_of_other_roles(
    tmp_path: Path, make_trajectory: Callable[..., Trajectory], opened: Callable[..., Any]
) -> None:
    """A trained role is named on its turns; the turns of a frozen one are shown apart, without credit."""
    task = Task(id="test-0", split="test", seed=0)
    one = make_trajectory(task)
    own = one.segments[0]
    trained = replace(own, agent="searcher", invocation=0, role="reader")
    frozen = replace(own, agent="clerk", invocation=1, role="solver")
    files = EpisodeFiles(tmp_path, resume=False)
    played = replace(one, segments=(own, trained), frozen_segments=(frozen,))
    files.add(TrajectoryGroup(ordinal=0, task=task, trajectories=(played,)))
    files.finish()
    page = opened(write_report(tmp_path))
    expect(page.locator(".chip", has_text="role reader")).to_have_count(len(own.turns))
    other = page.locator("details", has_text=f"clerk, played by the role solver, not trained: {len(own.turns)} turns")
    expect(other.locator(".turn")).to_have_count(0)
    other.locator("summary").click()
    expect(other.locator("pre.action").first).to_have_text("take: mug 1")


def test_raw_json_is_copied(run_dir: Path, opened: Callable[..., Any]) -> None:
    page = opened(write_report(run_dir))
    page.locator("details.raw summary").click()
    page.locator("details.raw button").click()
    expect(page.locator("details.raw button")).to_have_text("copied")
    assert json.loads(page.locator("details.raw pre").inner_text())["turns"][0]["gap"] == [0.002, 0.002]


def test_charts_show_values_and_zoom(run_dir: Path, opened: Callable[..., Any]) -> None:
    page = opened(write_report(run_dir))
    chart = page.locator("#learning .chart").first
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 100)
    expect(page.locator("#tip")).to_contain_text("step 12")
    expect(page.locator("#tip")).to_contain_text("evaluation: 80% (70% to 90%)")
    low, high = ("charts.get(document.querySelector('#learning .chart')).scales.x." + end for end in ("min", "max"))
    whole = page.evaluate(high) - page.evaluate(low)
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 100, steps=4)
    page.mouse.up()
    assert page.evaluate(high) - page.evaluate(low) < 0.5 * whole
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 100)
    assert page.evaluate(high) - page.evaluate(low) == pytest.approx(whole)
    chart.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tip")).to_contain_text("step")
    assert "success" in (chart.get_attribute("aria-label") or "")


PAINTED = """canvas => {
    const { width, height } = canvas, { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const isColoured = ([red, green, blue, alpha]) => alpha > 100 && Math.abs(red - blue) + Math.abs(red - green) > 60;
    const pixels = [...Array(width * height).keys()].map((at) => data.slice(4 * at, 4 * at + 4));
    const edge = pixels.filter((pixel, at) => at % width === 0 && pixel[3] > 100);
    return [pixels.filter(isColoured).length, edge.length];
}"""


def test_charts_of_one_step_show_it_and_all_of_their_labels(run_dir: Path, opened: Callable[..., Any]) -> None:
    metrics = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    first = [row for row in rows if row["phase"] != "rl" or row["step"] == 1]
    small = [{**row, "loss": -1.2345e-5} if row["phase"] == "rl" else row for row in first]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in small))
    charts = opened(write_report(run_dir)).locator("#learning .chart canvas")
    found = [tuple(chart.evaluate(PAINTED)) for chart in charts.all()]
    assert len(found) > 10 and all(num_coloured > 20 for num_coloured, _ in found), found
    assert not any(num_at_edge for _, num_at_edge in found), "labels that are cut off"


def test_labels_of_an_axis_are_whole_and_differ(run_dir: Path, opened: Callable[..., Any]) -> None:
    path = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for at, row in enumerate(rows):
        row |= {"loss": (at % 5 - 3) * 1.3e-7, "entropy": -1234.5 - at / len(rows), "grad_norm": -2.3 - at % 5 * 1e-4}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    axes = opened(write_report(run_dir)).evaluate(
        """() => [...charts.values()].map((u) => {
            const { font, gap, _values, _size } = u.axes[1];
            u.ctx.font = font[0];
            const widths = _values.map((one) => u.ctx.measureText(one).width / devicePixelRatio);
            return { labels: _values, longest: gap + Math.max(...widths), size: _size };
        })"""
    )
    labels = [axis["labels"] for axis in axes]
    assert ["−1.2354k", "−1.2353k", "−1.2352k", "−1.2351k"] in labels and any("e−7" in one[0] for one in labels)
    assert all(axis["longest"] <= axis["size"] and len(set(axis["labels"])) == len(axis["labels"]) for axis in axes)


def test_axes_of_zeros_and_of_counts(run_dir: Path, opened: Callable[..., Any]) -> None:
    path = run_dir / "metrics.jsonl"
    ended = {"status/completed": 1, "status/truncated_turns": 1}
    rows = [json.loads(line) | {"clip_fraction": 0.0, **ended} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = opened(write_report(run_dir)).evaluate(
        "() => [...charts].map(([element, u]) => [element.dataset.key, u.axes[1]._values])"
    )
    found = dict(labels)
    assert (found["clipped"][0], found["clipped"][-1]) == ("0%", "100%")
    assert found["statuses"] == ["0", "1", "2"]


def test_keys(run_dir: Path, opened: Callable[..., Any]) -> None:
    page = opened(write_report(run_dir))
    page.keyboard.press("?")
    expect(page.locator("dialog#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog#help")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("jk")
    expect(page.locator("#search")).to_have_value("jk")
    page.keyboard.press("Escape")
    page.fill("#search", "")
    page.locator("body").click(position={"x": 2, "y": 2})
    expect(page.locator("button.member").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_colour_breaks_the_rules_of_axe(run_dir: Path, opened: Callable[..., Any], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = opened(write_report(run_dir), scheme=scheme)
    for way in WAYS:
        page.select_option("#colour", way)
        page.keyboard.press("n")
        page.locator("button.chip", has_text="anchor").first.click()
        page.wait_for_selector(".peers")
        changed = [["#colours"], ["#viewer"]]  # the rest of the page is as it was
        found: dict[str, Any] = axe.Axe().run(page, None if way == WAYS[0] else {"include": changed}).response
        assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == [], way


def test_pictures_show_where_a_click_and_a_crop_acted(
    run_dir: Path, opened: Callable[..., Any], make_record: Any
) -> None:
    from agentgym.envs.seeing.grid import VisualGridEnv
    from agentgym.rollout.record import GroupRecord, record_path, write_records
    from agentgym.types import Segment

    env = VisualGridEnv(look=True)
    first, _ = env.reset(seed=3)
    record = make_record(0)
    episode = record.group.trajectories[0]
    turns = []
    for line in ("look_at: 1, 112, 112", "crop: 2, 0, 0, 200, 100", env.oracle().content):
        action = env.parse_action(str(line))
        replies = env.step(action)[0]
        turns.append(replace(episode.turns[0], action=action, replies=replies))
    shown = replace(episode, observation=first, segments=(Segment(tuple(turns)),))
    write_records(record_path(run_dir, 11), [GroupRecord(group=replace(record.group, trajectories=(shown,)))])
    page = opened(write_report(run_dir), "#step-12")
    page.locator(".member").last.click()
    found = page.evaluate(
        "() => [...document.querySelectorAll('.turn .acted')].map((v) => [v.title, v.querySelectorAll('i').length])"
    )
    assert [(title.split(",")[0], boxes) for title, boxes in found] == [
        ("picture 1", 1),
        ("picture 2", 1),
        ("picture 3", 1),
    ]
