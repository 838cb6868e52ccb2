"""Read completions with vLLM's tool parsers; run by ``tool_parsers.py`` with the Python of vLLM's environment.

Takes one JSON object on standard input: ``marks``, the texts that are special tokens; ``tools``, as functions; and
``cases``, each with ``parser``, ``text`` and ``without``, the marks that its tokenizer lacks; ``vocabulary``, a file of
tiktoken with the words of gpt-oss. The last line of output
is one JSON object: ``vllm``, its version, and ``readings``, one for each case. A reading is the calls as pairs of name
and arguments, or the reason why there are none.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import vllm
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
from vllm.parser.harmony import HarmonyParser
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.gptoss_tool_parser import GptOssToolParser


def tokenizer(marks: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single bytes whose special tokens are ``marks``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=model)
    made.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return made


def read(parser: str, text: str, tools: list[dict[str, Any]], marked: PreTrainedTokenizerFast) -> Any:
    """Return the calls of one completion, or a text that says why they cannot be compared."""
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "?"}], model="m", tools=tools)
    try:
        if parser == "harmony":
            return read_harmony(text, request, marked)
        made = ToolParserManager.get_tool_parser(parser)(marked, request.tools)
        found = made.extract_tool_calls(text, request)
        return [[call.function.name, json.loads(call.function.arguments)] for call in found.tool_calls]
    except Exception as error:  # a parser that raises is a difference, not the end of the comparison
        return f"{type(error).__name__}: {error}"


class CallsOfHarmony(HarmonyParser):
    """vLLM's reader of gpt-oss, told to return tool calls."""

    tool_parser_cls = GptOssToolParser


def read_harmony(text: str, request: ChatCompletionRequest, marked: PreTrainedTokenizerFast) -> list[list[Any]]:
    """Return the calls of a completion of gpt-oss, which vLLM reads by token ids."""
    ids = get_encoding().encode(text, allowed_special="all")
    _, _, calls = CallsOfHarmony(marked, request.tools).parse(text, request, model_output_token_ids=ids)
    return [[call.name, json.loads(call.arguments)] for call in calls or ()]


def main() -> None:
    asked = json.load(sys.stdin)
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(Path(asked["vocabulary"]).parent)
    made: dict[tuple[str, ...], PreTrainedTokenizerFast] = {}
    readings = []
    for case in asked["cases"]:
        lacks = tuple(case["without"])
        if lacks not in made:
            made[lacks] = tokenizer([mark for mark in asked["marks"] if mark not in lacks])
        readings.append(read(case["parser"], case["text"], asked["tools"], made[lacks]))
    print(json.dumps({"vllm": vllm.__version__, "readings": readings}))


if __name__ == "__main__":
    main()
