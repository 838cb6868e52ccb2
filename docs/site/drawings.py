"""Write the drawings of docs/concepts.md: python docs/site/drawings.py."""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "images"
BLUE, GREEN, ORANGE, RED, GREY = "#dce6fb", "#d9f0dd", "#fdebd0", "#f9d9d9", "#eef0f4"
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1c2330;text-anchor:middle}.s{font-size:11px;fill:#565f73}"
    ".l{text-anchor:start}.m{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px}"
    "path{stroke:#565f73;stroke-width:1.5;fill:none;marker-end:url(#a)}"
)


class Drawing:
    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title = (width, height), title
        self.parts: list[str] = []

    def box(self, x: int, y: int, width: int, text: str, fill: str, note: str = "", height: int = 44) -> None:
        middle = y + height / 2
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="#aab2c5"/>'
        )
        self.text(x + width / 2, middle + (4.5 if not note else -3), text)
        if note:
            self.text(x + width / 2, middle + 13, note, "s")

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int]) -> None:
        self.parts.append(f'<path d="M{" L".join(f"{x} {y}" for x, y in points)}"/>')

    def save(self, name: str) -> None:
        width, height = self.size
        marker = (
            '<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<polygon points="0,0 8,4 0,8" fill="#565f73"/></marker>'
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(self.title)}</title><style>{STYLE}</style><defs>{marker}</defs>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *self.parts,
            "</svg>\n",
        ]
        (IMAGES / name).write_text("\n".join(lines), encoding="utf-8")


def flow() -> None:
    d = Drawing(760, 230, "The flow of a training step: task, episode, group, credit, rows, loss, weights")
    for x, text, note, fill in (
        (20, "Task", "id, split, seed, data", GREY),
        (205, "Episode", "turns of one agent", BLUE),
        (390, "Group", "G episodes of one task", BLUE),
        (575, "Credit", "an advantage per turn", GREEN),
    ):
        d.box(x, 30, 165, text, fill, note)
    for x in (185, 370, 555):
        d.arrow((x, 52), (x + 19, 52))
    d.box(575, 150, 165, "Training rows", ORANGE, "token ids, mask, advantages")
    d.box(390, 150, 165, "Loss", ORANGE, "policy loss, corrections")
    d.box(205, 150, 165, "Weights", ORANGE, "an optimizer step")
    d.box(20, 150, 165, "Engine", BLUE, "samples tokens")
    d.arrow((657, 74), (657, 149))
    for x in (575, 390, 205):
        d.arrow((x, 172), (x - 19, 172))
    d.arrow((102, 150), (102, 112), (287, 112), (287, 75))
    d.text(195, 105, "completions", "s")
    d.save("flow.svg")


def tokens() -> None:
    d = Drawing(760, 190, "Tokens of an episode: sampled ids stay as they were sampled")
    spans = ((20, 190, "prompt", GREY), (210, 110, "action 1", GREEN), (320, 130, "reply 1", GREY))
    spans += ((450, 110, "action 2", GREEN), (560, 180, "reply 2, the end", GREY))
    for x, width, text, fill in spans:
        d.box(x, 30, width, text, fill)
        d.text(x + width / 2, 98, "1 1 1 1 1" if fill == GREEN else "0 0 0 0 0 0", "m")
    d.text(20, 20, "one context window = one training row, append only", "s l")
    d.text(20, 122, "loss mask: 1 exactly on tokens that the policy sampled", "s l")
    d.text(
        20,
        150,
        "green: ids as the engine sampled them, with their log-probabilities and the version of the weights",
        "s l",
    )
    d.text(20, 170, "grey: the environment's messages, rendered once as the suffix they add", "s l")
    d.save("tokens.svg")


def failures() -> None:
    d = Drawing(760, 250, "What becomes of an episode that the policy fails, and of one that the infrastructure fails")
    d.box(20, 100, 130, "Episode ends", BLUE)
    d.box(215, 30, 220, "by the policy", GREEN, "wrong answer, bad call, out of turns")
    d.box(215, 170, 220, "by the infrastructure", RED, "crash, hung tool, lost server")
    d.box(500, 30, 240, "a reward: it is trained on", GREEN, "completed, truncated_turns, policy_error")
    d.box(500, 125, 240, "played again, same seed", ORANGE, "up to group.max_retries times")
    d.box(500, 190, 240, "no reward: left out", RED, "of the loss and of the group's statistics")
    d.arrow((150, 115), (182, 115), (182, 52), (214, 52))
    d.arrow((150, 130), (182, 130), (182, 192), (214, 192))
    d.arrow((435, 52), (499, 52))
    d.arrow((435, 185), (467, 185), (467, 147), (499, 147))
    d.arrow((435, 205), (499, 212))
    d.text(620, 184, "still failing:", "s")
    d.save("failures.svg")


def credit() -> None:
    d = Drawing(
        760,
        280,
        "Three episodes of one group: GRPO gives an episode's turns one advantage, GiGPO compares turns in one state",
    )
    rows = (("episode 1", "s0", "s1", "s2", "return 10"), ("episode 2", "s0", "s1", "s1", "return 0"))
    rows += (("episode 3", "s0", "s3", "", "return 10"),)
    for number, (name, *states, outcome) in enumerate(rows):
        y = 40 + 70 * number
        d.text(20, y + 27, name, "l")
        for turn, state in enumerate(states):
            if state:
                d.box(120 + 150 * turn, y, 110, state, ORANGE if state == "s1" else BLUE if state == "s0" else GREY)
            if turn and state:
                d.arrow((80 + 150 * turn, y + 22), (119 + 150 * turn, y + 22))
        d.text(620, y + 27, outcome)
    d.text(20, 20, "turn 1, 2 and 3, each in the state in which it was taken", "s l")
    d.text(
        20,
        256,
        "GRPO compares three returns. GiGPO also compares turns of one state: in s1 one turn led to 10, two led to 0.",
        "s l",
    )
    d.save("credit.svg")


if __name__ == "__main__":
    flow()
    tokens()
    failures()
    credit()
