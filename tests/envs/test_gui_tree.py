"""The tree of a page: roles and names as Chromium has them, ids that stay, frames and shadow roots."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, opened

from agentgym.envs.gui.gui_env import GuiEnv
from agentgym.envs.gui.pool import driver
from agentgym.envs.gui.web_forms.env import WebFormsEnv
from agentgym.envs.gui.web_forms.problems import KINDS

pytestmark = NEEDS_CHROMIUM

NAMES = """
<title>Names</title>
<h1 id="top">Sign <em>up</em></h1>
<label for="a">First   name</label><input id="a" placeholder="Ada">
<label>Age <input type="number" value="3"> years</label>
<input placeholder="Only a hint"><input title="Only a title" placeholder="and a hint">
<input aria-label="Labelled" title="no"><input aria-labelledby="top late" type="search">
<span id="late" hidden>later</span>
<label>Flash the screen <input value="3" size="2"> times<input type="checkbox"></label>
<input type="submit"><input type="reset"><input type="button" value="Push"><input type="image" alt="Map">
<button><img alt="Save" src="data:image/gif;base64,R0lGODlhAQABAAAAACw="> file</button>
<button aria-label="Close">x</button><button title="A title"></button><button disabled>Cannot</button>
<a href="/x">Go <span>on</span></a><a href="/y"><img alt="Home" src="data:image/gif;base64,R0lGODlhAQABAAAAACw="></a>
<a>No link</a><img alt="" src="data:,"><img alt="Logo" src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">
<select aria-label="Size"><option>S</option><option selected>M</option></select>
<select aria-label="Many" multiple><option>one<option>two</select>
<fieldset><legend>Pay by</legend><label><input type="radio" name="p">Card</label><label><input type="radio" name="p" checked>Cash</label></fieldset>
<label><input type="range" min="0" max="9" value="4">Volume</label>
<div role="button" tabindex="0">Fold <b>me</b></div><div role="checkbox" aria-checked="mixed" tabindex="0">Some</div>
<div role="switch" aria-checked="true" tabindex="0">Wifi</div>
<ul role="tablist"><li role="tab" aria-selected="true">One</li><li role="tab">Two</li></ul>
<textarea aria-label="Notes">hello</textarea>
<div style="display:none"><button>Gone</button></div><button style="visibility:hidden">Unseen</button>
<div aria-hidden="true"><button tabindex="-1">Mute</button></div>
<details><summary>More</summary><button>Inside</button></details>
<progress value="3" max="9" aria-label="Done so far"></progress><meter aria-label="Fuel" value="0.5"></meter>
<button>Two<br>lines</button><button><div>Block</div><div>text</div></button>
"""

SAME_ROLES = {"Date": "textbox", "DisclosureTriangle": "button", "searchbox": "searchbox", "ColorWell": "button"}
COMPARED = {
    "button", "checkbox", "combobox", "heading", "link", "listbox", "meter", "progressbar", "radio", "region",
    "searchbox", "slider", "spinbutton", "switch", "tab", "textbox",
}  # fmt: skip


async def chromiums_tree(env: GuiEnv) -> list[tuple[str, str]]:
    """Role and name of what Chromium's own accessibility tree holds, frames included."""
    cdp = await env.session.context.new_cdp_session(env.tab.page)
    frames = await cdp.send("Page.getFrameTree")
    ids = [frames["frameTree"]["frame"]["id"]]
    ids += [child["frame"]["id"] for child in frames["frameTree"].get("childFrames", ())]
    found: list[tuple[str, str]] = []
    for frame in ids:
        answer = await cdp.send("Accessibility.getFullAXTree", {"frameId": frame})
        inside_date = {child for n in answer["nodes"] if n["role"]["value"] == "Date" for child in below(n, answer)}
        for node in answer["nodes"]:
            role, name = (node.get(key, {}).get("value", "") for key in ("role", "name"))
            if not node["ignored"] and node["nodeId"] not in inside_date:
                found.append((SAME_ROLES.get(role, role), " ".join(name.split())))
    return [pair for pair in found if pair[0] in COMPARED]


def below(node: dict[str, Any], answer: dict[str, Any]) -> set[str]:
    """The parts that Chromium makes a field for a date of."""
    children = {n["nodeId"]: n.get("childIds", []) for n in answer["nodes"]}
    found, new = set[str](), list(node.get("childIds", ()))
    while new:
        found.update(new)
        new = [child for parent in new for child in children.get(parent, ())]
    return found


def ours(env: GuiEnv) -> list[tuple[str, str]]:
    return [(node.role, node.name) for node in env.page.nodes if node.role in COMPARED]


def differences(env: GuiEnv) -> dict[str, Any]:
    theirs, mine = Counter(driver().call(chromiums_tree(env))), Counter(ours(env))
    return {"Chromium's alone": dict(theirs - mine), "ours alone": dict(mine - theirs)}


def test_roles_and_names_are_chromiums() -> None:
    with opened(NAMES) as env:
        assert differences(env) == {"Chromium's alone": {}, "ours alone": {}}
        assert len(ours(env)) > 30


@pytest.mark.parametrize("kind", KINDS)
def test_roles_and_names_of_our_pages_are_chromiums(kind: str) -> None:
    env = WebFormsEnv(kinds=[kind])
    try:
        env.reset(seed=3)
        assert differences(env) == {"Chromium's alone": {}, "ours alone": {}}
        assert len(ours(env)) >= 2
    finally:
        env.close()


def test_ids_come_from_names_and_from_what_tells_apart() -> None:
    page = """<button>Save changes now, or else they will be lost</button><button></button><input><input aria-label="Été 2">
    <table><tr><td>Ann</td><td><button>Edit</button></td></tr><tr><td>Bob</td><td><button>Edit</button></td></tr></table>
    <a href="/">Help</a><button>Help</button><button>Same</button><button>Same</button>
    <fieldset><legend>Home</legend><input aria-label="Street"></fieldset>
    <fieldset><legend>Work</legend><input aria-label="Street"></fieldset>"""
    with opened(page) as env:
        assert env.page.ids == (
            "save-changes-now-or-else", "button", "textbox", "été-2", "edit-ann", "edit-bob", "help-link", "help-button",
            "same", "same-2", "street-home", "street-work",
        )  # fmt: skip
        before = env.page
        env.do("goto: /")
        assert env.page.ids == before.ids
        assert env.page.state() == before.state()


def test_the_page_can_neither_see_nor_disturb_what_looks_at_it() -> None:
    page = """<button id=b>Go</button><script>
    Array.prototype.map = Element.prototype.getAttribute = document.querySelectorAll = () => { throw "mine"; };
    let seen = 0; new MutationObserver((found) => { seen += found.length; }).observe(document, {attributes: true,
      childList: true, characterData: true, subtree: true});
    window.count = () => seen;
    </script>"""
    with opened(page) as env:
        env.do("hover: go")
        assert env.page.ids == ("go",)
        assert env.js("[typeof agentgym, typeof agentgymTree, b.attributes.length, b.outerHTML]") == [
            "undefined", "undefined", 1, '<button id="b">Go</button>',
        ]  # fmt: skip
        before = env.js("count()")  # what Playwright's own evaluation may have done is behind us
        env.do("hover: go")
        assert env.js("count()") == before == 0


def test_frames_shadow_roots_and_slots() -> None:
    pages = {
        "/": """<x-card><b>slotted</b></x-card><iframe src="/in" title="Inner" style="margin-top:50px"></iframe><script>
        customElements.define("x-card", class extends HTMLElement { connectedCallback() {
          this.attachShadow({mode: "open"}).innerHTML = "<p>before</p><slot></slot><button onclick='this.textContent=1'>In</button>"; } });
        </script>""",
        "/in": "<button onclick=this.textContent='Hit'>Press</button>",
    }
    with opened(pages) as env:
        assert [(node.role, node.name) for node in env.page.nodes] == [
            ("text", "before"), ("text", "slotted"), ("button", "In"), ("iframe", "Inner"), ("button", "Press"),
        ]  # fmt: skip
        assert "[hit]" in env.do("click: press").content
        assert "[1]" in env.do("click: in").content


def test_what_is_hidden_scrolled_away_or_covered() -> None:
    page = """<div style="height:100px;overflow:auto" tabindex=0 aria-label=Box role=group><div style="height:400px">top</div>
    <button>Deep</button></div><div style="height:3000px"></div><button>Far</button><button hidden>No</button>"""
    with opened(page) as env:
        seen = {node.name: node.is_seen for node in env.page.nodes if node.role == "button"}
        assert seen == {"Deep": False, "Far": False}
        env.do("click: deep")
        assert env.page.by_id["deep"].is_seen
        env.do("click: far")
        assert env.page.by_id["far"].is_seen


def test_states_are_told() -> None:
    page = """<input value=a required readonly><input type=password value=abc aria-label=Secret><input type=checkbox checked>
    <select aria-label=S><option>a<option disabled>b<option selected>c</select><button aria-expanded=false>M</button>
    <a href=/ aria-current=page>Here</a><button disabled>D</button><input type=color value="#ff0000" aria-label=Ink>"""
    with opened(page) as env:
        shown = env.reset(seed=0)[0][0].text.splitlines()[3:]
    assert shown == [
        'textbox = "a" readonly required [textbox]',
        'textbox "Secret" = "•••" [secret]',
        "checkbox checked [checkbox]",
        'combobox "S" = "c" options: a | c [s]',
        'button "M" not expanded [m]',
        'link "Here" current [here]',
        'button "D" disabled [d]',
        'button "Ink" = "#ff0000" [ink]',
    ]
