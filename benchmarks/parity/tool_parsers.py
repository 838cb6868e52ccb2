"""Compare our reading of tool calls with vLLM's tool parsers, on random well-formed completions.

    AGENTGYM_VLLM_PYTHON=.venv-vllm PYTHONPATH=. python benchmarks/parity/tool_parsers.py --cases 300 \\
        --output benchmarks/parity/tool_parsers

Each completion holds one to four calls, written by our format and, where TRL ships a chat template that writes them, by
the template. Ours and vLLM's non-streaming ``extract_tool_calls`` read it, and names and arguments are compared. A
difference that :data:`ROWS` does not explain ends the script with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # vocabulary
sys.path.insert(0, str(HERE.parent / "render"))  # random_calls
sys.path.insert(0, str(HERE.parents[1] / "tests" / "shared"))  # testkit: a small tokenizer with a template of TRL

from random_calls import TOOLS, random_calls, random_prose  # noqa: E402
from vocabulary import find_vocabulary  # noqa: E402

from agentgym.render.families import FORMATS  # noqa: E402
from agentgym.trainers.engines.vllm.launch import find_vllm  # noqa: E402
from agentgym.types import Message, ToolCall  # noqa: E402

MARKS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<think>",
        "</think>",
        "<arg_key>",
    ),
    *("</arg_key>", "<arg_value>", "</arg_value>", "<|observation|>", "<|python_tag|>", "<|tool_call_start|>"),
    *("<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]", "<|channel>", "<channel|>", "<｜tool▁calls▁begin｜>"),
    *("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
)
"""Texts that are special tokens of the tokenizer that vLLM's parsers get."""


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: completions of a format, read by one of vLLM's parsers."""

    form: str
    parser: str
    writer: str = "ours"
    """``ours``, the name of one of TRL's templates, or one of :data:`VARIANTS`."""
    without: tuple[str, ...] = ()
    """Marks that the tokenizer lacks, by which vLLM's parser knows older models."""
    explained: str = ""
    """Reason why ours and vLLM's may differ, and which one is right; empty if they must be equal."""


GEMMA4 = (
    "vLLM returns numbers, booleans and null inside an object without a schema as text: `{options:{deep:7}}` gives "
    '`{"deep": "7"}`. The format quotes text with `<|"|>`, so ours, the number 7, is right.'
)
PHI = (
    "vLLM ends the list at its first `]`, so it loses every call of a turn in which a value holds one: "
    '`functools[{"name": "write", "arguments": {"tags": []}}]` gives none. Ours reads the list as JSON and is right.'
)
LOSSY = (
    "Ours and vLLM's agree. The template writes null as `None`, which is read as text where an argument may be text."
)
ROWS = (
    Row("hermes", "hermes"), Row("hermes", "hermes", "qwen3"), Row("hermes", "qwen3_json"),
    Row("hermes", "hermes", "qwen2_5"),
    Row("qwen_xml", "qwen3_coder"), Row("qwen_xml", "qwen3_xml"),
    Row("qwen_xml", "qwen3_xml", "qwen3_5_nothink", explained=LOSSY),
    Row("qwen_xml", "qwen3_xml", "nemotron_3_nano"),
    Row("glm", "glm45"), Row("glm", "glm45", "glm4moe"), Row("glm", "glm47"),
    Row("llama_json", "llama3_json"), Row("llama_json", "llama3_json", "llama3_1"),
    Row("pythonic", "pythonic"), Row("pythonic", "llama4_pythonic"),
    Row("lfm2", "lfm2"), Row("lfm2", "lfm2", "lfm2_v2"),
    Row("mistral", "mistral", without=("[ARGS]",)), Row("mistral", "mistral", "NAME[ARGS]{...}"),
    Row("mistral", "mistral", "NAME{...}"),
    Row("phi", "phi4_mini_json", "functools[...]", explained=PHI),
    Row("gemma4", "gemma4", explained=GEMMA4), Row("gemma4", "gemma4", "gemma4", explained=GEMMA4),
    Row("deepseek", "deepseek_v3"), Row("deepseek", "deepseek_v3", "deepseekv3"),
    Row("deepseek", "deepseek_v31", "NAME<｜tool▁sep｜>{...}"),
    Row("harmony", "harmony"), Row("harmony", "harmony", "gptoss"),
    Row("harmony", "harmony", "to= after the channel"),
)  # fmt: skip
NOT_COMPARED = {
    "tool_code": "vLLM has no parser for Gemma 3; `functiongemma` reads another format",
    "json": "vLLM has no parser for bare JSON without marks",
    "react": "vLLM has none",
    "compact": "ours alone",
}


def _v31(calls: Sequence[ToolCall]) -> str:
    bodies = (
        f"<｜tool▁call▁begin｜>{call.name}<｜tool▁sep｜>{_json(dict(call.arguments))}<｜tool▁call▁end｜>"
        for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{''.join(bodies)}<｜tool▁calls▁end｜>"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _after_channel(calls: Sequence[ToolCall]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json"
        f"<|message|>{_json(dict(call.arguments))}<|call|>"
        for call in calls
    )


VARIANTS = {
    "to= after the channel": _after_channel,
    "NAME[ARGS]{...}": lambda calls: "".join(f"[TOOL_CALLS]{c.name}[ARGS]{_json(dict(c.arguments))}" for c in calls),
    "NAME{...}": lambda calls: "".join(f"[TOOL_CALLS]{c.name}{_json(dict(c.arguments))}" for c in calls),
    "functools[...]": lambda calls: (
        f"functools{_json([{'name': c.name, 'arguments': dict(c.arguments)} for c in calls])}"
    ),
    "NAME<｜tool▁sep｜>{...}": _v31,
}
"""Other ways to write a format, which ours reads and does not write."""


def completions(row: Row, num_cases: int, seed: int) -> list[tuple[str, list[list[Any]]]]:
    """Return completions, each with the names and arguments of the calls that it holds."""
    rng = Random(f"{seed} {row.form} {row.parser} {row.writer}")
    renderer = None
    if row.writer != "ours" and row.writer not in VARIANTS:
        from testkit.family_episodes import tokenizer_of

        from agentgym.render.chat import ChatRenderer

        renderer = ChatRenderer(tokenizer_of(row.writer))
    made = []
    while len(made) < num_cases:
        calls = random_calls(rng)
        if renderer is not None:
            calls = calls[: 1 if renderer.template.abilities.calls == "one" else None]
            text = renderer.action_text(Message("assistant", calls=calls), TOOLS)
        elif row.writer in VARIANTS:
            text = VARIANTS[row.writer](calls)
        else:
            text = FORMATS[row.form].format(calls, TOOLS)
        prose = "" if renderer is not None else random_prose(rng, row.form)
        if prose and row.form == "harmony":  # words have a channel of their own
            prose = f"<|channel|>commentary<|message|>{prose}<|end|><|start|>assistant"
        made.append((prose + text, [[call.name, dict(call.arguments)] for call in calls]))
    return made


def compare(num_cases: int, seed: int = 0) -> dict[str, Any]:
    """Return the versions and one result for each of :data:`ROWS`.

    Raises:
        UsageError: vLLM's environment is not there.
    """
    python = find_vllm().python
    vocabulary = find_vocabulary()
    written = [(row, text, wanted) for row in ROWS for text, wanted in completions(row, num_cases, seed)]
    asked = {
        "marks": MARKS,
        "tools": [tool.as_function() for tool in TOOLS],
        "vocabulary": str(vocabulary),
        "cases": [{"parser": row.parser, "text": text, "without": row.without} for row, text, _ in written],
    }
    done = subprocess.run(
        [python, str(HERE / "tool_parsers_in_vllm.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"vLLM's side failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    results = []
    for row in ROWS:
        equal, wrong, vllm_wrong, example = 0, 0, 0, ""
        for (of, text, wanted), theirs in zip(written, answer["readings"], strict=True):
            if of is not row:
                continue
            found = FORMATS[row.form].parse(text, TOOLS).calls
            ours = [[call.name, dict(call.arguments)] if isinstance(call, ToolCall) else call.reason for call in found]
            equal += ours == theirs
            wrong += ours != wanted
            vllm_wrong += theirs != wanted
            if ours != theirs and (not example or len(text) < len(example)):
                example = text
        results.append(
            {
                "format": row.form,
                "parser": row.parser,
                "written_by": row.writer,
                "cases": num_cases,
                "equal": equal,
                "ours_wrong": wrong,
                "vllm_wrong": vllm_wrong,
                "explained": row.explained,
                "shortest_difference": example,
            }
        )
    return {"vllm": answer["vllm"], "rows": results}


def unexplained(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows where ours is wrong more often than vLLM's, or where a difference has no reason."""
    return [
        row
        for row in results["rows"]
        if row["ours_wrong"] > row["vllm_wrong"]
        or (not row["explained"] and (row["ours_wrong"] or row["equal"] < row["cases"]))
    ]


def as_markdown(results: dict[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# Tool calls as we and as vLLM read them",
        "",
        f"{results['date']}, vLLM {results['vllm']}, commit {results['commit']}. Command: `{results['command']}`",
        "",
        "Random well-formed completions of one to four calls, from a seed. `equal` counts those that ours and vLLM's",
        "`extract_tool_calls` read as the same names and arguments; `wrong` those that differ from the calls written.",
        "",
        "| format | vLLM's parser | written by | cases | equal | wrong: ours | wrong: vLLM |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: dict[str, int] = {}
    for row in results["rows"]:
        note = f" [{notes.setdefault(row['explained'], len(notes) + 1)}]" if row["explained"] else ""
        writer = "our format" if row["written_by"] == "ours" else f"`{row['written_by']}`"
        lines.append(
            f"| `{row['format']}` | `{row['parser']}` | {writer} | {row['cases']} | {row['equal']}{note} "
            f"| {row['ours_wrong']} | {row['vllm_wrong']} |"
        )
    lines += ["", *(f"{number}. {why}" for why, number in notes.items()), ""]
    lines += ["Not compared:", "", *(f"* `{form}`: {why}." for form, why in NOT_COMPARED.items()), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300, help="completions of a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="path without suffix; .json and .md are written")
    args = parser.parse_args()
    results = compare(args.cases, args.seed)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    results |= {
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"python benchmarks/parity/tool_parsers.py --cases {args.cases} --seed {args.seed}",
    }
    args.output.with_suffix(".json").write_text(
        json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    args.output.with_suffix(".md").write_text(as_markdown(results), encoding="utf-8")
    bad = unexplained(results)
    if bad:
        print(*(json.dumps(row, ensure_ascii=False) for row in bad), sep="\n", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
