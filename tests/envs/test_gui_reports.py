"""Situations that users of other browser agents reported, rebuilt; docs/field-log.md names the reports."""

from __future__ import annotations

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, PageEnv, opened

pytestmark = NEEDS_CHROMIUM

SHADOW = """<x-card><span>slotted text</span><button slot=act>Slotted</button></x-card><script>
customElements.define("x-card", class extends HTMLElement { constructor() { super();
this.attachShadow({mode: "open"}).innerHTML = "<button>Inner</button><slot></slot><slot name=act></slot>"; } });
document.addEventListener("click", (event) => { document.title = event.composedPath()[0].textContent; });</script>"""


def test_a_shadow_root_and_what_is_slotted_into_it_are_both_seen() -> None:
    with opened(SHADOW) as env:
        assert "slotted text" in env.page.text
        for name in ("Inner", "Slotted"):
            assert env.do(f"click: {name.lower()}").error_type is None
            assert env.js("document.title") == name


def test_a_dialog_while_the_page_loads_blocks_nothing_and_is_told() -> None:
    env = PageEnv("<title>T</title><script>alert('Maintenance at noon')</script><h1>Shop</h1>")
    try:
        told = env.reset(seed=0)[0][-1].text
    finally:
        env.close()
    assert "Maintenance at noon" in told and "Shop" in told


def test_a_dialog_after_a_click_is_answered_and_told() -> None:
    with opened("<button onclick=\"this.textContent = confirm('Leave?') ? 'Left' : 'Stayed'\">Go</button>") as env:
        told = env.do("click: go").content
        assert "The page asked: 'Leave?'; the answer was OK." in told and "Left" in told


def test_a_dialog_within_a_hidden_wrapper_is_seen() -> None:
    inner = "<div role=dialog aria-label=Confirm style='visibility:visible'><button>Yes</button></div>"
    with opened(f"<main>Back</main><div style='visibility:hidden'>{inner}</div>") as env:
        assert "yes" in env.page.ids


COMBOBOX = """<label id=l>Product</label><input role=combobox aria-labelledby=l aria-expanded=false aria-controls=m>
<div id=m role=listbox hidden style="height:40px;overflow:auto"></div><script>
const box = document.querySelector("input");
box.onfocus = () => setTimeout(() => { m.hidden = false; box.ariaExpanded = "true"; m.innerHTML = "";
for (let n = 1; n <= 30; n++) { const one = document.createElement("div"); one.role = "option"; one.textContent = `Item ${n}`;
one.onmousedown = () => { box.value = one.textContent; m.hidden = true; }; m.append(one); } }, 300);</script>"""


def test_an_option_of_a_made_combobox_is_chosen_by_clicks_also_below_its_fold() -> None:
    with opened(COMBOBOX) as env:
        said = env.do('select: product; ["Item 27"]')
        assert said.error_type == "impossible_action" and "click it" in said.content
        assert "item-27" in env.do("click: product").content
        env.do("click: item-27")
        assert env.js("document.querySelector('input').value") == "Item 27"


@pytest.mark.parametrize(
    "field", ["<input value=old aria-label=box>", "<div contenteditable aria-label=box>a<br>b</div>"]
)
@pytest.mark.parametrize("text", ["new", ""])
def test_fill_replaces_the_whole_text(field: str, text: str) -> None:
    with opened(field) as env:
        env.step({"name": "fill", "arguments": {"id": "box", "text": text}})
        assert env.js("(document.body.firstElementChild.value ?? document.body.innerText).trim()") == text


def test_listeners_within_a_frame_are_found() -> None:
    inside = "<div id=a>First</div><div id=b>Second</div><script>a.onclick = () => { parent.document.title = 'a'; };"
    inside += "b.addEventListener('click', () => { parent.document.title = 'b'; });</script>"
    with opened({"/": "<p>Out</p><iframe src=/in style='margin:120px'></iframe>", "/in": inside}) as env:
        for id, title in (("first", "a"), ("second", "b")):
            assert env.do(f"click: {id}").error_type is None
            assert env.js("document.title") == title


def test_a_list_that_the_page_draws_anew_is_clicked_by_the_same_id() -> None:
    draw = "list.innerHTML = '<button>Add</button><button>Remove</button>'"
    with opened(f"<div id=list></div><script>{draw}; setInterval(() => {{ {draw} }}, 50)</script>") as env:
        assert env.do("click: remove").error_type is None


def test_a_link_that_opens_a_window_leads_to_it() -> None:
    with opened({"/": "<a href=/there target=_blank>Open</a>", "/there": "<h1>There</h1>"}) as env:
        assert "There" in env.do("click: open").content and len(env.session.tabs) == 2
