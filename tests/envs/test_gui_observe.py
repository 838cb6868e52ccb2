"""What the agent reads of a page, without a browser."""

from __future__ import annotations

import re

import pytest

from agentgym.envs.gui import chromium
from agentgym.envs.gui.chromium import find_chromium, has_chromium
from agentgym.envs.gui.determinism import page_script
from agentgym.envs.gui.observe import ObservationConfig, lines_of, page_text, tabs_line
from agentgym.envs.gui.tree import Node, Tree
from agentgym.errors import ConfigError, EnvError


def test_a_row_is_one_line() -> None:
    nodes = (
        Node(0, "table", "Staff"),
        Node(1, "row", ""),
        Node(2, "columnheader", "", {"sort": "ascending"}),
        Node(3, "button", "Name", {}, "name"),
        Node(1, "row", ""),
        Node(2, "cell", "Ann"),
        Node(2, "cell", ""),
        Node(3, "button", "Edit", {}, "edit"),
        Node(0, "text", "end"),
    )
    assert lines_of([True] * 9, Tree("", "", nodes))[0] == [
        'table "Staff"',
        '  row: columnheader sorted ascending button "Name" [name]',
        '  row: Ann | button "Edit" [edit]',
        "end",
    ]


def test_what_is_on_the_screen_comes_first_and_the_cut_is_told() -> None:
    nodes = tuple(Node(0, "button", f"b{n}", {}, f"b{n}", (0, 0, 1, 1), n >= 50) for n in range(100))
    text = page_text(Tree("http://x.localhost/", "T", nodes), 1500)
    lines = text.splitlines()
    assert lines[1] == 'button "b50" [b50]'
    assert lines[51] == "Off the screen (ids work; scroll to see it):"
    assert lines[52] == 'button "b0" [b0]'
    shown = len([line for line in lines if line.startswith("button")])
    assert lines[-1].startswith(f"[cut: {100 - shown} more lines")
    assert len(text.encode()) <= 1600


def test_empty_groups_are_left_out() -> None:
    nodes = (Node(0, "main", ""), Node(1, "status", ""), Node(1, "list", ""), Node(2, "text", "x"))
    assert lines_of([True] * 4, Tree("", "", nodes))[0] == ["main", "  list", "    x"]


def test_a_state_has_neither_boxes_nor_what_is_in_sight() -> None:
    one = Tree("u", "t", (Node(0, "button", "B", {"focused": True}, "b", (0, 0, 9, 9), True),), scroll=(0, 0))
    two = Tree("u", "t", (Node(0, "button", "B", {"focused": True}, "b", (5, 5, 9, 9), False),), scroll=(0, 7))
    other = Tree("u", "t", (Node(0, "button", "B", {}, "b"),))
    assert one.state() == two.state() != other.state()


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match=r"no link 'x' on u; there are \['Home'\]"):
        Tree("u", "t", (Node(0, "link", "Home"),)).find("link", "x")
    with pytest.raises(ConfigError, match="at least 100 tokens"):
        ObservationConfig(max_tokens=5)


def test_tabs_are_told_if_there_are_several() -> None:
    assert tabs_line(["a"], 0) == ""
    assert tabs_line(["a", "b"], 1) == "Tabs: 1: a; 2 (current): b"


def test_a_seed_is_in_the_script() -> None:
    assert 'CHANNEL = "chan", SEED = 7,' in page_script("chan", 7)
    assert not re.search("__[A-Z_]+__", page_script("chan", 2**40))


def test_chromium_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("AGENTGYM_CHROMIUM", "/no/such/program")
    with pytest.raises(EnvError, match="names '/no/such/program', which is no program"):
        find_chromium()
    monkeypatch.delenv("AGENTGYM_CHROMIUM")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.setattr(chromium, "PROGRAMS", ("chromium",))
    assert not has_chromium()
    with pytest.raises(EnvError, match="apt-get install chromium-headless-shell"):
        find_chromium()
