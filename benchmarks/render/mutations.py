"""Mutate completions in every tool-call format: nothing raises, and no call that was left alone is lost.

    PYTHONPATH=. python benchmarks/render/mutations.py --cases 100000 --output benchmarks/render/mutations

Each case writes one to four random calls and changes the text by one to three edits. An edit deletes, doubles or moves
a part, cuts the end off, or puts in random characters, a mark of any format, or half a call. There are two kinds of
cases.

* **Anywhere**: the edits are anywhere in the completion. Reading it raises nothing, every span lies in the text, and
  every call can be written as JSON.
* **Inside one call**: the edits are inside the marks of one call, or inside its outermost brackets (:data:`INSIDES`).
  Every other call of the turn must be read, in order, with its name and arguments. The changed call is free to become
  another call, several, or a malformed one. Two outcomes do not count as lost calls:

  * ``own mark``: an edit left a mark of the format inside the call, which moves where its neighbours begin, or that of
    a made-up result, at which reading ends.
  * ``swallowed``: the format has no marks between calls, and the changed call is well-formed and holds its neighbour in
    an argument. An edit removed a quote, and the neighbour's text supplied another.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from random_calls import TOOLS, WORDS, core, parts, random_calls, random_prose

from agentgym.render.families import FORMATS
from agentgym.render.formats.reading import INVENTED
from agentgym.types import ToolCall

INSIDES = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "qwen_xml": ("<tool_call>", "</tool_call>"),
    "glm": ("<tool_call>", "</tool_call>"),
    "gemma4": ("<|tool_call>", "<tool_call|>"),
    "deepseek": ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    "harmony": ("", "<|call|>"),
    "mistral": ("{", "}"),
    "phi": ("{", "}"),
    "llama_json": ("{", "}"),
    "json": ("{", "}"),
    "pythonic": ("(", ")"),
    "lfm2": ("(", ")"),
    "tool_code": ("(", ")"),
    "react": ("Action:", ""),
    "compact": ("", ""),
}
"""Delimiters around the part of a call that is changed: the format's markers, or the outermost brackets."""
MARKS = (
    *("<tool_call>", "</tool_call>", "<|tool_call>", "<tool_call|>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁calls▁end｜>", "<|call|>", "<|end|>", "<|return|>", "<|start|>assistant", "<|message|>", "[TOOL_CALLS]"),
    *("[ARGS]", "</s>", "<|tool_call|>", "<|/tool_call|>", "<|tool_call_start|>", "<|tool_call_end|>", "```"),
    *("```tool_code\n", "```json\n", "<function=", "</function>", "<parameter=", "<arg_key>", "</arg_value>"),
    *("Action:", "Action Input:", "\nObservation:", "<|python_start|>", "<think>", "</think>", '<|"|>'),
)
OWN = {
    "hermes": ("tool_call>",),
    "qwen_xml": ("tool_call>",),
    "glm": ("tool_call>",),
    "gemma4": ("<|tool_call>", "<tool_call|>"),
    "deepseek": ("<｜tool▁call",),
    "harmony": ("<|start|>", "<|call|>"),
    "mistral": ("[TOOL_CALLS]", "</s>"),
    "phi": ("tool_call|>",),
    "lfm2": ("<|tool_call_",),
    "tool_code": ("```",),
    "react": ("Action:", "\nObservation:"),
}
"""Texts that tell calls of the format apart."""
CALLING = tuple(sorted(INSIDES))
CHUNK = 2 * len(CALLING)
"""Completions that are timed together: both kinds in every format."""


def mutate(rng: Random, text: str) -> str:
    """Return a text after one to three edits."""
    for _ in range(rng.randrange(1, 4)):
        start, stop = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        stop = min(stop, start + rng.choice((1, 3, 12, len(text))))
        part = text[start:stop]
        at = rng.randrange(len(text) + 1)
        edit = rng.randrange(8)
        if edit == 0:
            text = text[:start] + text[stop:]
        elif edit == 1:
            text = text[:stop] + part + text[stop:]
        elif edit == 2:
            rest = text[:start] + text[stop:]
            text = rest[:at] + part + rest[at:]
        elif edit == 3:
            text = text[:at]
        elif edit == 4:
            text = text[:at] + rng.choice(MARKS) + text[at:]
        elif edit == 5:
            text = (
                text[:at]
                + "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0xD7FF)))) for _ in range(3))
                + text[at:]
            )
        elif edit == 6:
            text = (
                text[:at]
                + rng.choice(("{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ":", "=", "\n", *WORDS))
                + text[at:]
            )
        else:
            form = rng.choice(CALLING)
            half = core(form, random_calls(rng, 1)[0])
            text = text[:at] + half[: rng.randrange(len(half) + 1)] + text[at:]
    return text


def facts(calls: Sequence[object]) -> list[str]:
    """Return the calls that were read as comparable texts."""
    return [json.dumps([c.name, dict(c.arguments)], sort_keys=True) for c in calls if isinstance(c, ToolCall)]


def missing(wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    """Return the items of ``wanted`` that are not in ``found``, in order.

    Example:
        >>> missing(["a", "b", "c"], ["x", "a", "c"])
        ['b']
    """
    left, at = [], 0
    for one in wanted:
        if one in found[at:]:
            at = found.index(one, at) + 1
        else:
            left.append(one)
    return left


def read(form: str, text: str) -> tuple[object, ...]:
    """Read a completion, and check what holds for every text.

    Raises:
        AssertionError: a span outside of the text, or a call that is no JSON.
    """
    calls = FORMATS[form].parse(text, TOOLS).calls
    for call in calls:
        if isinstance(call, ToolCall):
            json.dumps([call.name, dict(call.arguments)], allow_nan=False).encode()
        else:
            start, stop = call.span
            assert 0 <= start <= stop <= len(text), f"the span {call.span} is outside of the text"
    return calls


def anywhere(rng: Random, form: str) -> str:
    """Change a completion anywhere, and read it; return ``read``."""
    text = random_prose(rng, form) + FORMATS[form].format(random_calls(rng), TOOLS)
    read(form, mutate(rng, text))
    return "read"


def inside_one_call(rng: Random, form: str) -> str:
    """Change one call of a completion, and return ``kept``, ``swallowed``, ``own mark`` or ``lost: TEXT``."""
    calls = random_calls(rng)
    cores = [core(form, call) for call in calls]
    which = rng.randrange(len(calls))
    opening, closing = INSIDES[form]
    start = cores[which].index(opening) + len(opening)
    stop = cores[which].rindex(closing)
    changed = mutate(rng, cores[which][start:stop])
    cores[which] = cores[which][:start] + changed + cores[which][stop:]
    text = random_prose(rng, form) + parts(form).written(cores)
    found = read(form, text)
    if any(mark in changed for mark in OWN.get(form, ())) or INVENTED.search(changed):
        return "own mark"
    lost = missing(facts([call for n, call in enumerate(calls) if n != which]), facts(found))
    if not lost:
        return "kept"
    neighbours = [one[:12] for n, one in enumerate(cores) if n != which]
    arguments = [str(value) for call in found if isinstance(call, ToolCall) for value in call.arguments.values()]
    if not _has_marks(form) and any(near in value for near in neighbours for value in arguments):
        return "swallowed"
    return f"lost: {text!r}"


def _has_marks(form: str) -> bool:
    opening, closing = INSIDES[form]
    return len(opening + closing) > 2


def run(num_cases: int, seed: int) -> dict[str, Counter[str]]:
    """Return the outcomes of ``num_cases`` cases, half of each kind, by format.

    Raises:
        AssertionError: a call that was left alone is lost, or one of the checks of :func:`read` failed.
    """
    rng = Random(seed)
    outcomes: dict[str, Counter[str]] = {form: Counter() for form in CALLING}
    for number in range(num_cases):
        form = CALLING[number % len(CALLING)]
        outcome = (anywhere if number // len(CALLING) % 2 else inside_one_call)(rng, form)
        assert not outcome.startswith("lost"), f"{form}: {outcome}"
        outcomes[form][outcome] += 1
    return outcomes


def as_markdown(results: dict[str, Any]) -> str:
    """Return the results as a page."""
    names = ("read", "kept", "own mark", "swallowed")
    rows = [
        f"| `{form}` | {' | '.join(str(counts.get(name, 0)) for name in names)} |"
        for form, counts in results["outcomes"].items()
    ]
    return f"""{results["num_cases"]:,} mutated completions, seed {results["seed"]}. No exception, no lost call.
{results["processor_s"]:.0f} processor seconds; the slowest {CHUNK} completions took {results["slowest_ms"]:.0f} ms.

{results["date"]}, commit {results["commit"]}, Python {results["python"]}. Command: `{results["command"]}`

| format | anywhere: read | inside one call: others kept | own mark | swallowed |
|---|---|---|---|---|
{chr(10).join(rows)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="path without suffix; .json and .md are written")
    args = parser.parse_args()
    outcomes: dict[str, Counter[str]] = {form: Counter() for form in CALLING}
    begun, slowest = time.process_time(), 0.0
    for number in range(0, args.cases, CHUNK):
        at = time.process_time()
        for form, counts in run(min(CHUNK, args.cases - number), args.seed * 1_000_003 + number).items():
            outcomes[form] += counts
        slowest = max(slowest, time.process_time() - at)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    results = {
        "num_cases": args.cases,
        "seed": args.seed,
        "processor_s": round(time.process_time() - begun, 1),
        "slowest_ms": round(slowest * 1000, 1),
        "outcomes": outcomes,
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["python", *sys.argv]),
    }
    args.output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    args.output.with_suffix(".md").write_text(as_markdown(results), encoding="utf-8")


if __name__ == "__main__":
    main()
