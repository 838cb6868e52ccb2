"""What an agent can do on a page, and what it reads when it cannot."""

from __future__ import annotations

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, opened

from agentgym.envs.gui.actions import ACTION_SETS
from agentgym.envs.gui.site import Response
from agentgym.errors import UnknownNameError

pytestmark = NEEDS_CHROMIUM

LOG = """<ol id=log></ol><script>
const say = (text) => log.append(Object.assign(document.createElement("li"), {textContent: text}));
for (const kind of ["click", "dblclick", "mouseover", "input", "change", "keydown"])
  document.addEventListener(kind, (event) => { if (event.target.id && event.target.id !== "log")
    say([kind, event.target.id, event.isTrusted, event.key ?? event.target.value].join(" ").trim()); });
</script>"""


def logged(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if " true" in line or " false" in line]


def test_clicks_are_a_persons() -> None:
    with opened(f"<button id=b>Go</button>{LOG}") as env:
        assert logged(env.do("click: go").content) == ["mouseover b true", "click b true"]
        assert logged(env.do("double_click: [go]").content)[2:] == ["click b true", "click b true", "dblclick b true"]
        assert env.do("click: go").error_type is None


def test_text_is_filled_typed_and_cleared() -> None:
    with opened(f"<input id=a aria-label=A value=old><textarea id=t aria-label=T>x</textarea>{LOG}") as env:
        assert 'textbox "A" = "new; \\"1\\""' not in env.do('fill: a; "new; \\"1\\""').content
        assert env.page.by_id["a"].states["value"] == 'new; "1"'
        env.do("type: a; 23")
        assert env.page.by_id["a"].states["value"] == 'new; "1"23'
        env.do('fill: a; ""')
        assert "value" not in env.page.by_id["a"].states
        env.do('fill: t; "two\\nlines"')
        assert env.js("t.value") == "two\nlines"


def test_fields_with_a_picker_take_values() -> None:
    page = """<input type=date aria-label=D><input type=time aria-label=T><input type=range aria-label=R max=9>
    <input type=color aria-label=C><div contenteditable aria-label=E role=textbox>old</div><input type=number aria-label=N>"""
    with opened(page) as env:
        for line in (
            "fill: d; 2026-02-03",
            "fill: t; 14:05",
            "fill: r; 7",
            "fill: c; #00ff00",
            "fill: e; new",
            "fill: n; 5",
        ):
            assert env.do(line).error_type is None, line
        values = {name: node.states["value"] for name, node in env.page.by_id.items()}
        assert values == {"d": "2026-02-03", "t": "14:05", "r": "7", "c": "#00ff00", "e": "new", "n": "5"}
        refused = env.do("fill: d; tomorrow")
        assert refused.error_type == "invalid_arguments"
        assert "a field for a date" in refused.content


def test_keys() -> None:
    with opened(f"<form action=/sent><input id=a aria-label=A></form>{LOG}") as env:
        env.do("click: a")
        assert env.do("press: Shift+B").error_type is None
        assert env.page.by_id["a"].states["value"] == "B"
        refused = env.do("press: Hyper+Nothing")
        assert refused.error_type == "invalid_arguments"
        assert "Enter, Tab, Escape" in refused.content
        assert "Page: without a title (http://page.localhost/sent" in env.do("press: Enter").content


def test_select_check_and_uncheck() -> None:
    page = """<select aria-label=One id=o><option value=1>Red<option value=2>Blue</select>
    <select aria-label=Many multiple><option>a<option>b<option>c</select>
    <input type=checkbox aria-label=Box><input type=radio name=r aria-label=X><input type=radio name=r aria-label=Y checked>
    <div role=switch tabindex=0 aria-checked=false onclick="this.ariaChecked = this.ariaChecked !== 'true'">Wifi</div>"""
    with opened(page) as env:
        env.do('select: one; ["blue"]')
        env.do('select: many; ["a", "c"]')
        for line in ("check: box", "check: box", "check: x", "check: wifi"):
            assert env.do(line).error_type is None
        states = {name: node.states for name, node in env.page.by_id.items()}
        assert (states["one"]["value"], states["many"]["value"]) == ("Blue", "a, c")
        assert [states[name]["checked"] for name in ("box", "x", "y", "wifi")] == [True, True, False, True]
        env.do("uncheck: box")
        assert env.page.by_id["box"].states["checked"] is False
        assert "takes one of: Red | Blue" in env.do('select: one; ["Green"]').content
        assert env.do('select: box; ["Green"]').error_type == "impossible_action"
        assert "by choosing another one" in env.do("uncheck: x").content
        assert env.do("check: one").error_type == "impossible_action"


def test_wrong_ids_say_what_exists() -> None:
    with opened("<button>Send</button><a href=/>Home</a><p>text</p>") as env:
        said = env.do("click: sent")
        assert said.error_type == "unknown_id"
        assert said.content.startswith("Error: no element [sent]. Did you mean [send]? Ids: send, home")
        assert env.do("fill: send; x").content.startswith("Error: [send] is not a text box")
        assert env.do("click: send; extra").error_type == "malformed_call"


def test_what_is_covered_or_disabled() -> None:
    page = """<style>.over { position: absolute; left: 0; top: 0; width: 400px; height: 100px; }</style>
    <button onclick="document.title='through'">Under</button><button disabled>Off</button>
    <div class=over onclick="document.title='over'">Cookies?</div>"""
    with opened(page) as env:
        assert env.do("click: under").content.startswith("Error: [under] is covered by 'Cookies?'")
        assert env.do("click: off").content.startswith("Error: [off] is disabled")
        env.clicks_through_covers = True
        assert "Page: through" in env.do("click: under").content


def test_a_click_finds_the_part_that_is_not_covered() -> None:
    page = """<button style="position:absolute;left:0;top:0;width:100px;height:40px" onclick="document.title='one'">One</button>
    <button style="position:absolute;left:10px;top:0;width:100px;height:40px" onclick="document.title='two'">Two</button>"""
    with opened(page) as env:
        assert "Page: one" in env.do("click: one").content


def test_drag_and_drop_by_both_kinds_of_events() -> None:
    page = """<style>div { width: 100px; height: 60px; background: #eee; }</style>
    <div id=a draggable=true ondragstart="event.dataTransfer.setData('text/plain', 'A')">Card</div>
    <div id=b tabindex=0 ondragover="event.preventDefault()" ondrop="document.title += event.dataTransfer.getData('text')">Bin</div>
    <script>let at; a.onpointerdown = (e) => { at = e.clientY; }; b.onpointerup = (e) => { document.title += "up"; }</script>"""
    with opened(page, actions=("elements", "pixels", "answer")) as env:
        assert "Page: A" in env.do("drag: card; bin").content
        env.js("a.draggable = false")
        env.do("drag_at: 50; 30; 50; 90")
        assert env.js("document.title") == "Aup"


def test_pixels() -> None:
    page = "<canvas id=c width=200 height=100 onclick=document.title=[event.offsetX,event.offsetY]></canvas>"
    with opened(f"<style>body {{ margin: 0 }}</style>{page}", actions=("pixels", "answer"), viewport=(300, 200)) as env:
        assert "Page: 20,30" in env.do("click_at: 20; 30").content
        assert "outside the picture: x runs from 0 to 299" in env.do("click_at: 300; 30").content
        assert env.do("click: c").error_type == "unknown_tool"


def test_pages_tabs_and_history() -> None:
    pages = {
        "/": "<title>one</title><a href=/two>Two</a><a href=/two target=_blank>Tab</a>",
        "/two": "<title>two</title>",
    }
    with opened(pages) as env:
        assert env.do("go_back").content.startswith("Error: there is no page before this one")
        assert "Page: two" in env.do("click: two").content
        assert "Page: one" in env.do("go_back").content
        opened_tab = env.do("click: tab").content
        assert "A new tab was opened (2)." in opened_tab
        assert "Tabs: 1: http://page.localhost/; 2 (current): http://page.localhost/two" in opened_tab
        assert "Page: one" in env.do("switch_tab: 1").content
        assert env.do("switch_tab: 7").content.startswith("Error: no tab 7; there are 2")
        assert "Tabs" not in env.do("close_tab: 2").content
        assert env.do("close_tab: 1").content.startswith("Error: the only tab")
        assert "Page: two" in env.do("new_tab: /two").content
        assert "Page: one" in env.do("goto: page.localhost").content


@pytest.mark.parametrize("url", ["http://example.com/", "https://page.localhost/", "file:///etc/passwd",
    "data:text/html,<p>x", "javascript:alert(1)", "chrome://version", "http://page.localhost:81/", "//example.com",
    "http://[", "view-source:http://page.localhost/"])  # fmt: skip
def test_goto_knows_the_tasks_sites_alone(url: str) -> None:
    with opened("<title>one</title>") as env:
        said = env.do(f'goto: "{url}"')
        assert said.error_type == "not_allowed"
        assert "its sites are http://page.localhost/" in said.content
        assert env.page.url == "http://page.localhost/"


def test_a_page_that_is_not_there_and_one_that_is_a_file() -> None:
    pages: dict[str, str | Response] = {
        "/": "<a href=/file>File</a>",
        "/file": Response(body=b"x", headers={"content-disposition": "attachment; filename=a.csv"}),
    }
    with opened(pages) as env:
        assert "'a.csv'; it was not saved" in env.do("click: file").content
        assert env.page.url == "http://page.localhost/"
        assert "Not found" in env.do("goto: /nothing").content


def test_several_calls_in_a_turn_show_the_page_once() -> None:
    with opened("<input aria-label=A><button>Go</button>") as env:
        action = env.parse_action("fill: a; x\nclick: nope\nclick: go")
        messages = env.step(action)[0]
        assert [message.text.startswith(("Filled", "Error", "Clicked")) for message in messages] == [True] * 3
        assert ["Page:" in message.text for message in messages] == [False, False, True]
        ended = env.step(env.parse_action("done\nclick: go"))
        assert ended[0][1].result is not None
        assert ended[0][1].result.error_type == "episode_over"
        assert ended[2]


def test_sets_of_actions() -> None:
    names = {name for names in ACTION_SETS.values() for name in names}
    with opened("", actions=tuple(ACTION_SETS), observe=("tree", "set_of_marks")) as env:
        assert {tool.name for tool in env.tools} == names
    with pytest.raises(UnknownNameError, match=r"unknown set of actions 'mouse'.*known: answer, elements"):
        with opened("", actions=("mouse",)):
            pass


def test_what_can_be_done_is_listed() -> None:
    page = "<input aria-label=A><select aria-label=S><option>x<option>y</select><button>Go</button><button disabled>No</button>"
    with opened(page) as env:
        assert env.admissible_actions() == (
            'fill: a; ""', "fill: a; A", 'select: s; ["x"]', 'select: s; ["y"]', "click: go",
        )  # fmt: skip


def test_results_tell_where_on_the_screen_a_call_acted() -> None:
    page = "<button style='position:absolute;left:30px;top:40px;width:50px;height:20px'>Go</button><p style=height:3000px></p><button>Far</button>"
    with opened(page, actions=("elements", "pixels")) as env:
        for line, box in (
            ("click: go", (30, 40, 50, 20)),
            ("click_at: 100; 60", (92, 52, 16, 16)),
            ("click: far", None),
        ):
            result = env.step(line)[0][-1].result
            assert result is not None
            assert result.box == box, line
