"""What a person sees and can do in a page, the agent can: texts, styled controls, listeners, frames, values, files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, PageEnv, opened

from agentgym.types import Task

pytestmark = NEEDS_CHROMIUM


def shown(page: str) -> str:
    """Return the first observation of a page."""
    env = PageEnv(page)
    try:
        return env.reset(seed=0)[0][-1].text
    finally:
        env.close()


def test_long_texts_and_cells_are_whole_within_the_budget() -> None:
    cell = "<table><tr><td>" + "a " * 110 + "THE END</td></tr></table>"
    text = "<p>" + "A sentence that says little of a thing. " * 89 + "The access code is PLUM-77.</p>"
    assert "THE END" in shown(cell) and "PLUM-77" in shown(text)


def test_a_text_beyond_the_budget_is_cut_with_a_mark() -> None:
    env = PageEnv("<p>" + "word " * 500 + "</p>", max_tokens=200)
    try:
        told = env.reset(seed=0)[0][-1].text
    finally:
        env.close()
    assert "word word" in told and "more bytes of this line]" in told


def test_what_is_visible_is_said_and_what_is_not_is_not() -> None:
    assert "Code 4711" in shown('<div style="visibility:hidden"><p style="visibility:visible">Code 4711</p></div>')
    told = shown("<details><summary>More</summary>secret<p>hidden</p></details><p>open")
    assert "secret" not in told and "hidden" not in told and "More" in told


@pytest.mark.parametrize("style", ["visibility:hidden", "display:none", "opacity:0;width:0;height:0"])
def test_a_styled_box_is_ticked_by_its_label(style: str) -> None:
    page = f'<label><input type=checkbox style="{style}"><span>News</span></label>'
    with opened(page) as env:
        assert "[news]" in env.do("check: news").content
        assert env.js("document.querySelector('input').checked") is True
    page = f'<input type=radio id=a style="{style}"><label for=a>Large</label>'
    with opened(page) as env:
        assert env.do("click: large").error_type is None
        assert env.js("document.querySelector('input').checked") is True


def test_a_link_without_a_box_is_clicked_at_what_is_in_it() -> None:
    page = '<a href="#there" style="display:contents"><div>Open card</div></a>'
    with opened(page) as env:
        assert env.do("click: open-card").error_type is None
        assert env.js("location.hash") == "#there"


def test_an_element_with_a_listener_alone_can_be_clicked() -> None:
    listens = 'x.addEventListener("click", () => { document.title = "closed"; })'
    with opened(f"<a id=x title=Close>×</a><script>{listens}</script>") as env:
        assert env.do("click: close").error_type is None
        assert env.js("document.title") == "closed"
    with opened("<div id=x>Open</div><script>x.onclick = () => { document.title = 'opened'; }</script>") as env:
        env.do("click: open")
        assert env.js("document.title") == "opened"


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("type=color value=#000000", "#FF0000", "#ff0000"),
        ("type=datetime-local", "2026-03-07 10:30", "2026-03-07T10:30"),
        ("type=datetime-local", "2026-03-07T10:30:00", "2026-03-07T10:30"),
        ("type=number value=3", "12", "12"),
    ],
)
def test_a_value_is_set_in_its_canonical_form(field: str, text: str, value: str) -> None:
    with opened(f"<input aria-label=day {field}>") as env:
        assert "Filled [day]" in env.do(f"fill: day; {text}").content
        assert env.js("document.querySelector('input').value") == value


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("type=date value=2026-03-05", "03/07/2026"),
        ("type=color value=#123456", "loud"),
        ("type=range value=7", "loud"),
        ("type=range value=7 max=9", "12"),
        ("type=number value=3", "many"),
    ],
)
def test_a_rejected_value_changes_nothing(field: str, text: str) -> None:
    with opened(f"<input aria-label=day {field}>") as env:
        before = env.js("document.querySelector('input').value")
        assert env.do(f"fill: day; {text}").error_type == "invalid_arguments"
        assert env.js("document.querySelector('input').value") == before


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [("type=email value=ann@", "b.co", "ann@b.co"), ("type=number value=12", "3", "123"), ("value=old", "er", "older")],
)
def test_typing_goes_on_at_the_end(field: str, text: str, value: str) -> None:
    with opened(f"<input aria-label=box {field}>") as env:
        env.do(f"type: box; {text}")
        assert env.js("document.querySelector('input').value") == value


def test_typing_goes_on_at_the_end_of_editable_text() -> None:
    with opened("<div contenteditable aria-label=box><p>one</p><p>two</p></div>") as env:
        assert '"one two"' in env.do("type: box; more").content.replace("twomore", "two")
        assert "twomore" in env.js("document.querySelector('div').innerText")


class FileEnv(PageEnv):
    """A page with a file to give."""

    def files(self, task: Task) -> Mapping[str, bytes]:
        return {"cv.txt": b"Ann"}


def test_a_file_of_the_task_is_given_to_a_field() -> None:
    env = FileEnv("<label>CV <input type=file></label>", actions=("elements", "files", "answer"))
    try:
        env.reset(seed=0)
        assert "file chooser" in env.do("click: cv").content
        assert env.do('upload: cv; ["gone.txt"]').error_type == "invalid_arguments"
        assert "cv.txt" in env.do('upload: cv; ["cv.txt"]').content
        assert env.js("document.querySelector('input').files[0].size") == 3
    finally:
        env.close()


LIST = "<div id=root><ul><li class=row data-id=7>Milk</li><li class=row>Bread</li></ul><p>Not to click</p></div>"
DID = "document.title = event.target.textContent;"
DELEGATED = {
    "by closest, on the document": f'document.addEventListener("click", (event) => {{ if (event.target.closest(".row")) {DID} }})',
    "by matches, on a container": f"root.addEventListener('click', function (event) {{ if (event.target.matches('li')) {DID} }})",
    "by a class": f'root.onclick = (event) => {{ if (event.target.classList.contains("row")) {DID} }}',
    "by data": f"window.addEventListener('click', (event) => {{ if (event.target.dataset.id) {DID} }})",
    "by an object": "document.addEventListener('click', {handleEvent(event) { if (event.target.closest('li')) "
    + DID
    + " }})",
    "by a property of the document": "document.onclick = (event) => { if (event.target.matches('.row')) { " + DID + " } };",
    "by a property of the window": "window.onclick = (event) => { if (event.target.matches('.row')) { " + DID + " } };",
    "as React does": "const kinds = 'click keydown keyup keypress focusin focusout input change submit reset mousedown mouseup "
    "mouseover mouseout mousemove pointerdown pointerup pointermove touchstart touchend wheel drag drop'.split(' ');"
    "const act = (event) => { const key = Object.keys(event.target).find((one) => one.startsWith('__reactProps$'));"
    "if (event.type === 'click' && key) event.target[key].onClick(event); };"
    "for (const kind of kinds) root.addEventListener(kind, act);"
    "document.querySelector('li').__reactProps$x = {onClick(event) { " + DID + " }};",
    "as Solid does": "document.addEventListener('click', (event) => event.target.$$click?.(event));"
    "document.querySelector('li').$$click = (event) => { " + DID + " };",
    "as jQuery does": "root.jQuery3711 = {events: {click: [{selector: 'li.row'}]}};"
    "const dispatch = (event) => { if (event.target.nodeName === 'LI') { " + DID + " } };"
    "root.addEventListener('click', dispatch);",
    "by an attribute": "document.querySelector('li').setAttribute('jsaction', 'click:x');"
    "document.addEventListener('click', (event) => { if (event.target.hasAttribute('jsaction')) { " + DID + " } });",
}  # fmt: skip


@pytest.mark.parametrize("script", DELEGATED.values(), ids=DELEGATED)
def test_an_element_for_which_another_one_listens_can_be_clicked(script: str) -> None:
    with opened(f"{LIST}<script>{script}</script>") as env:
        assert "milk" in env.page.ids and not any(one.startswith("not-to") for one in env.page.ids)
        assert env.do("click: milk").error_type is None
        assert env.js("document.title") == "Milk"


def test_an_element_for_which_a_shadow_root_listens_can_be_clicked() -> None:
    made = f'const root = document.querySelector("main").attachShadow({{mode: "open"}}); root.innerHTML = "{LIST}";'
    hears = "root.addEventListener('click', (event) => { if (event.target.closest('.row')) " + DID + " });"
    with opened(f"<main></main><script>{made}{hears}</script>") as env:
        assert env.do("click: milk").error_type is None
        assert env.js("document.title") == "Milk"
