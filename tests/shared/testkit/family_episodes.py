"""A conversation of five turns in every chat template that TRL ships, and the table of the results.

PYTHONPATH=.:tests/shared python -m testkit.family_episodes docs/models.md
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trl
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from agentgym.render.chat import ChatRenderer
from agentgym.rollout.session import Session
from agentgym.types import Completion, FinishReason, Message, ToolCall, ToolResult, ToolSpec
from testkit.tokenizers_for_tests import trained

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja") if not path.stem.endswith("_training"))
UNKNOWN = {"muse_glimmer": "its calls go through channels that no tool-call format here reads"}
"""Templates that agentgym rejects, with the reason."""
DIFFERS = {"diffusion_gemma": "it opens the model's turn after a tool result in the history, but not in the prompt"}
"""Templates whose later rendering of the history differs from their own prompt, with the reason."""
BEGIN, END = "<!-- table of families -->", "<!-- end of the table -->"

SPECIAL = re.compile(
    r"<\|[^|>\s]{1,30}\|>|<[a-z_]{1,20}\|>|<\|[a-z_]{1,20}>|<｜[^>]{1,30}｜>|\[/?[A-Z_]{3,20}\]"
    r"|<(?:start|end)_of_(?:turn|utterance)>|</?s>"
)
OPEN = ToolSpec(
    "open_box",
    "Open a box.",
    {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "Which."}, "note": {"type": "string"}},
        "required": ["number"],
    },
)


def _call(number: int, note: str) -> ToolCall:
    return ToolCall("open_box", {"number": number, "note": note})


def _result(text: str) -> Message:
    return Message("tool", text, result=ToolResult(text, "open_box"))


FIRST = (Message("system", "You are careful."), Message("user", "Find the gold."))
TURNS: tuple[tuple[Message, tuple[Message, ...]], ...] = (
    (
        Message("assistant", calls=(_call(1, 'it\'s "é"'), _call(2, "b")), thinking="Think one."),
        (_result("opened 1"), _result("empty")),
    ),
    (Message("assistant", calls=(_call(99, "no such box"),)), (_result("error: there is no box 99"),)),
    (
        Message("assistant", calls=(_call(3, "日本 \\ / {x}"),), thinking="Think two."),
        (_result('a "quoted" <b>reply</b>'),),
    ),
    (Message("assistant", "I found it.", answer="I found it."), (Message("user", "Which one?"),)),
    (Message("assistant", calls=(_call(4, "last"),), thinking="Think three."), (_result("gold"),)),
)
"""The model's messages and their replies: two calls in one turn, a failed call, unicode, quotes, a user's reply."""


@dataclass(frozen=True, slots=True)
class Played:
    """The result of the conversation with one template."""

    family: str
    format: str
    tools: str
    results: str
    calls: str
    num_read: int
    num_segments: int
    differs_after: tuple[int, ...]
    """Turns after which the session's text is not the rendering of the whole conversation."""
    ids_differ_after: tuple[int, ...]
    """Turns after which the session's token ids are not those of the whole conversation."""


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """Return a small tokenizer with a template of TRL, in which the template's markers are single tokens."""
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer = copy.deepcopy(trained())
    marks = sorted(set(SPECIAL.findall(template)))
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer.chat_template = template
    tokenizer.bos_token = "<|endoftext|>"
    return tokenizer


def play(name: str, *, thinks: bool) -> Played:
    """Play the conversation with a template of TRL."""
    return play_with(tokenizer_of(name), thinks=thinks)


def play_with(tokenizer: Any, *, thinks: bool) -> Played:
    """Play the conversation; each completion is the template's own rendering of the message."""
    renderer = ChatRenderer(tokenizer)
    can = renderer.template.abilities
    session = Session(renderer, [OPEN], FIRST)
    history, num_read, differs, ids_differ = list(FIRST), 0, [], []
    for at, (wanted, answers) in enumerate(TURNS):
        said, replies = wanted, answers
        if not thinks:
            said = Message("assistant", wanted.content, wanted.calls, answer=wanted.answer)
        if can.calls == "one":
            said = Message("assistant", said.content, said.calls[:1], thinking=said.thinking, answer=said.answer)
            replies = answers[:1]
        ids = _completion(renderer, tokenizer, history, said, replies)
        count = len(ids)
        message = session.add_completion(
            Completion(
                token_ids=tuple(ids),
                logprobs=(0.0,) * count,
                policy_versions=(0,) * count,
                finish_reason=FinishReason.STOP,
            )
        )
        num_read += _facts(message) == _facts(said)
        history += [message, *replies]
        session.add_replies(replies)
        whole = renderer.template.render(history, [OPEN])
        if str(tokenizer.decode(list(session.prompt_ids))) != str(tokenizer.decode(list(renderer._encode(whole)))):
            differs.append(at + 1)
        if list(session.prompt_ids) != _template_ids(renderer, tokenizer, history):
            ids_differ.append(at + 1)
    told = "the template" if can.tools else "the first message"
    results = "tool messages" if can.results else "user messages"
    written = {"many": "the template", "one": "the template, one a message", "none": "text"}[can.calls]
    return Played(
        renderer.family.name,
        renderer.format.name,
        told,
        results,
        written,
        num_read,
        session.num_segments,
        tuple(differs),
        tuple(ids_differ),
    )


def _template_ids(renderer: ChatRenderer, tokenizer: Any, history: Sequence[Message]) -> list[int]:
    """Return the whole conversation as the tokenizer's own ``apply_chat_template`` tokenizes it."""
    chat = renderer.template.as_chat(history, [OPEN])
    can = renderer.template.abilities
    if can.parts:
        chat = [{**row, "content": [{"type": "text", "text": row["content"]}]} for row in chat]
    tools = [OPEN.as_function()] if can.tools else None
    ids = tokenizer.apply_chat_template(chat, tools=tools, tokenize=True, add_generation_prompt=True, return_dict=False)
    return list(ids)


def _completion(
    renderer: ChatRenderer,
    tokenizer: Any,
    history: Sequence[Message],
    said: Message,
    replies: Sequence[Message],
) -> list[int]:
    before = renderer.template.render(history, [OPEN])
    written = said
    if said.calls and not renderer.template.renders_calls(said):
        written = Message("assistant", renderer.format.format(_calls(said), [OPEN]))
    whole = renderer.template.render([*history, written], [OPEN], more=False)
    # a template that writes no thinking for the last message cannot show how the model would write it
    thinks = renderer.family.think is not None and bool(said.thinking or renderer.opens_thinking)
    shows = renderer.template.abilities.thinking or not thinks
    if whole.startswith(before) and shows:
        body = whole[len(before) :].rstrip()
    else:
        think = renderer.family.think
        thought = f"{said.thinking}\n{think[1]}\n\n" if think and (said.thinking or renderer.opens_thinking) else ""
        thought = thought if renderer.opens_thinking or not thought or not think else f"{think[0]}\n{thought}"
        body = thought + (renderer.format.format(_calls(said), [OPEN]) if said.calls else said.text)
    ids = list(tokenizer.encode(body, add_special_tokens=False))
    if ids[-1] in renderer.turn_end_ids:
        return ids
    following = renderer.template.render([*history, written, *replies], [OPEN])
    after = following[len(whole.rstrip()) :] if following.startswith(whole.rstrip()) else ""
    first = tokenizer.encode(after, add_special_tokens=False)[:1]
    return [*ids, first[0] if first and first[0] in renderer.turn_end_ids else renderer.turn_end_ids[0]]


def _calls(message: Message) -> list[ToolCall]:
    return [call for call in message.calls if isinstance(call, ToolCall)]


def _facts(message: Message) -> list[object]:
    return [(c.name, dict(c.arguments)) if isinstance(c, ToolCall) else c.reason for c in message.calls]


def table() -> str:
    """Return the table of the documentation."""
    rows = [
        "| TRL's template | family | tool-call format | tools told by | results as | calls written by | calls read "
        "| segments: without, with thinking |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in NAMES:
        if name in UNKNOWN:
            rows.append(f"| {name} | refused: {UNKNOWN[name]} | | | | | | |")
            continue
        plain, thinking = play(name, thinks=False), play(name, thinks=True)
        rows.append(
            f"| {name} | {plain.family} | `{plain.format}` | {plain.tools} | {plain.results} | {plain.calls} "
            f"| {plain.num_read} of 5 | {plain.num_segments}, {thinking.num_segments} |"
        )
    return "\n".join([*rows, "", *(f"* {name} differs: {why}." for name, why in DIFFERS.items())])


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_between(Path(sys.argv[1]), BEGIN, END, table())
