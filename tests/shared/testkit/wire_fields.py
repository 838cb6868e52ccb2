"""The lists of fields in docs/unmodified_agents.md, made from the code."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.endpoint.wire import anthropic, fields, gemini, openai_chat, openai_responses

BEGIN, END = "<!-- fields: made from the code -->", "<!-- end of fields -->"
APIS = {
    "chat completions": openai_chat.FIELDS,
    "responses": openai_responses.FIELDS,
    "messages": anthropic.FIELDS,
    "generateContent": gemini.FIELDS,
    "its `generationConfig`": gemini.SETTINGS,
}


def named(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def refusals(api: fields.Fields) -> Iterator[str]:
    yield from (f"`{name}` ({why})" for name, why in sorted(api.partly.items()))
    yield from (f"`{name}`: {why}" for name, why in sorted(api.refused.items()))


def table() -> str:
    """Return the lists as Markdown."""
    rows = ["| API | the run decides | refused |", "|---|---|---|"]
    rows += [f"| {name} | {named(api.fixed)} | {'; '.join(refusals(api))} |" for name, api in APIS.items()]
    return "\n".join([*rows, "", f"Labels, which are ignored without a note: {named(fields.LABELS)}."])
