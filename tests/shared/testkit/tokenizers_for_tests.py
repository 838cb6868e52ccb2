"""Small tokenizers, trained when needed, with chat templates like those of real models."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]

HERMES = """{%- if tools %}<|im_start|>system
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}
{%- if loop.first or loop.previtem.role != "tool" %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or loop.nextitem.role != "tool" %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML with Hermes tools; neighbouring tool results share one user block, as in Qwen's templates."""

THINKING = """{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == "assistant" and not loop.last and "</think>" in content %}
{%- set content = content.split("</think>")[-1] %}
{%- endif %}<|im_start|>{{ message.role }}
{{ content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Drops the thinking of every earlier assistant message."""

MISTRAL = """{%- for message in messages %}
{%- if message.role == "user" %}
{%- if not loop.first and (loop.previtem.role != "assistant" or loop.previtem.tool_calls) %}
{{- raise_exception("roles must alternate") }}
{%- endif %}[INST]{{ message.content }}[/INST]
{%- elif message.role == "tool" %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- elif message.tool_calls %}[TOOL_CALLS][
{%- for call in message.tool_calls %}{{ call.function | tojson }}{{ ", " if not loop.last }}{% endfor %}]<|im_end|>
{%- else %}{{ message.content }}<|im_end|>
{%- endif %}
{%- endfor %}"""
"""Refuses a user message after a call or a tool result, as Mistral's templates."""

PREPENDING = """{{ bos_token }}
{%- for message in messages %}
{%- if message.role == "assistant" %}{{ message.content + eos_token }}
{%- else %}{{ "[INST] " + message.content + " [/INST]" }}{% endif %}
{%- endfor %}"""


@cache
def trained(template: str = HERMES) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with the given chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["You are in the middle of a room. go to the fridge and open it", '{"name": "look", "arguments": {}}'] * 20
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    wrapped.chat_template = template
    return wrapped


@cache
def prepending() -> PreTrainedTokenizerFast:
    """Make a tokenizer of characters that adds a space to the start of every text, as Llama 2's and Mistral 7B's."""
    characters = ["<unk>", "▁", *map(chr, range(33, 127)), "\n"]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(characters)}, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    wrapped.chat_template = PREPENDING
    return wrapped
