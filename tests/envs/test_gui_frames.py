"""An agent sees and acts in frames of every origin as a person does, and reads where one cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from testkit.gui_pages import NEEDS_CHROMIUM, PageEnv, PageSite, opened

from agentgym.envs.gui.frames import UNREAD
from agentgym.envs.gui.site import Response, Sites
from agentgym.envs.gui.tab import Tab
from agentgym.types import Task

pytestmark = NEEDS_CHROMIUM

FORM = """<title>Pay</title><p>Pay here</p><label>Card number <input></label>
<select aria-label=Kind><option>Debit<option>Credit</select><label><input type=checkbox>Keep it</label>
<button>Pay</button><p id=out></p><script>document.querySelector("button").onclick = (event) => {
const [card, keep] = document.querySelectorAll("input"), kind = document.querySelector("select");
out.textContent = [card.value, kind.value, keep.checked, event.isTrusted].join(" "); }</script>"""


class FramesEnv(PageEnv):
    """A page and sites that it shows in frames."""

    def __init__(self, page: str, others: Mapping[str, str | Response], **options: Any) -> None:
        super().__init__(page, **options)
        self.others = others

    def sites(self, task: Task) -> Sites:
        return {self.host: self.site, **{host: PageSite({"/": page}) for host, page in self.others.items()}}


@contextmanager
def framed(page: str, **others: str | Response) -> Iterator[FramesEnv]:
    """Return an environment that shows a page whose frames show the sites ``NAME.localhost``."""
    env = FramesEnv(page, {f"{name}.localhost": other for name, other in others.items()})
    try:
        env.reset(seed=0)
        yield env
    finally:
        env.close()


def frame(name: str, title: str = "Card", style: str = "") -> str:
    return f'<iframe title="{title}" src="http://{name}.localhost/" style="{style}"></iframe>'


AS_OTHERS = {
    "another site": frame("pay"),
    "a subdomain": frame("pay.page"),
    "sandboxed": f"<iframe title=Card sandbox=allow-scripts srcdoc='{FORM}'></iframe>",
    "a data URL": f"<iframe title=Card src='data:text/html,{FORM.replace('#', '%23')}'></iframe>",
    "an object": '<object title=Card type="text/html" data="http://pay.localhost/" width=300 height=150></object>',
    "a frameset": '<frameset><frame title=Card src="http://pay.localhost/"></frameset>',
}


@pytest.mark.parametrize("page", AS_OTHERS.values(), ids=AS_OTHERS)
def test_a_form_in_a_frame_is_read_and_filled(page: str) -> None:
    form = Response(body=FORM.encode(), headers={"Origin-Agent-Cluster": "?1"})  # asks for a process of its own
    with framed(page, pay=form, **{"pay.page": form}) as env:
        assert 'iframe "Card"\n  Pay here\n  textbox "Card number" [card-number]' in env.do("press: Escape").content
        env.do("fill: card-number; 47")
        env.do("type: card-number; 11")
        env.do('select: kind; ["Credit"]')
        env.do("check: keep-it")
        assert "\n  4711 Credit true true" in env.do("click: pay").content


def test_a_frame_without_scripts_is_read_and_scrolled() -> None:
    inside = "<p>Top</p><div style=height:2000px></div><p>Bottom</p>"
    with framed(f"<iframe title=Terms sandbox srcdoc='<main role=listbox>{inside}</main>'></iframe>") as env:
        assert "Top" in env.do("press: Escape").content
        assert env.do("scroll: down; listbox").content.startswith("Scrolled down.")


@pytest.mark.parametrize(
    "around",
    [
        "<div style=height:3000px></div>{}",
        "<div style='height:200px;overflow:auto'><div style=height:900px></div>{}</div>",
    ],
)
def test_a_button_deep_in_a_frame_far_down_is_brought_to_the_screen(around: str) -> None:
    tall = "<div style=height:2500px></div>" + FORM
    for page in (around.format(frame("pay", style="height:2800px")), around.format(frame("pay", style="height:150px"))):
        with framed(page, pay=tall) as env:
            assert "true" in env.do("click: pay").content


def test_a_button_deep_in_a_tall_frame_of_the_same_origin_is_clicked() -> None:
    inside = f"<div style=height:2500px></div>{FORM}"
    with opened({"/": '<iframe src="/in" style="height:2800px"></iframe>', "/in": inside}) as env:
        assert "true" in env.do("click: pay").content


def test_frames_within_frames_of_yet_other_origins() -> None:
    middle = "<h2>Middle</h2>" + frame("pay") + "<div style=height:500px></div>"
    with framed("<h1>Outer</h1>" + frame("mid", "Mid"), mid=middle, pay=FORM) as env:
        env.do("fill: card-number; 12")
        told = env.do("click: pay").content
        assert "    12 Debit false true" in told and '  iframe "Card"' in told


def test_equal_names_in_the_page_and_its_frames_get_ids_of_their_own() -> None:
    page = "<button>Pay</button>" + frame("pay", "Card") + frame("paypal", "Wallet")
    with framed(page, pay=FORM, paypal=FORM) as env:
        ids = [one for one in env.page.ids if one.startswith("pay")]
        assert ids == ["pay", "pay-card", "pay-wallet"]
        env.do("fill: card-number-wallet; 9")
        key, told = env.state_key(), env.do("click: pay-wallet").content
        assert told.count("Debit false true") == 1 and "9 Debit" in told and env.state_key() != key


def test_a_frame_that_something_covers_is_not_clicked() -> None:
    cover = "<div role=dialog aria-label=Cookies style='position:fixed;inset:0;background:white'>Take some</div>"
    with framed(frame("pay") + cover, pay=FORM) as env:
        said = env.do("click: pay")
        assert said.error_type == "covered" and "Cookies" in said.content


def test_an_element_of_a_frame_that_has_gone_is_unknown() -> None:
    with framed("<button>Stay</button>" + frame("pay"), pay=FORM) as env:
        env.js("document.querySelector('iframe').remove()")
        said = env.do("click: card-number")
        assert said.error_type == "unknown_id" and "[stay]" in said.content and "crashed" not in said.content


def test_timers_of_a_frame_follow_the_clock_of_the_episode() -> None:
    ticks = "<p id=out></p><script>let n = 0; setInterval(() => { out.textContent = `tick ${++n}`; }, 1000)</script>"
    with framed(frame("clock"), clock=ticks) as env:
        assert "tick 10" in env.do("wait: 9.5").content


def test_two_episodes_with_frames_have_equal_states() -> None:
    keys = []
    for _ in range(2):
        with framed(
            frame("pay") + frame("dice"), pay=FORM, dice="<script>document.write(Math.random())</script>"
        ) as env:
            env.do("fill: card-number; 5")
            keys.append(env.state_key())
    assert keys[0] == keys[1]


def test_the_markup_has_that_of_the_frames() -> None:
    env = FramesEnv("<p>Page</p>" + frame("pay"), {"pay.localhost": "<p>Inside</p>"}, observe=("html",))
    try:
        told = env.reset(seed=0)[0][-1].text
    finally:
        env.close()
    assert "<p>Page</p>" in told and "<!-- in a frame: http://pay.localhost/ -->" in told and "<p>Inside</p>" in told


def test_a_frame_that_cannot_be_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tab, "has_document", lambda self, frame: False)
    with framed("<p>Page</p>" + frame("pay"), pay=FORM) as env:
        assert UNREAD in env.do("press: Escape").content
