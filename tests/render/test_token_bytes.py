"""Joined bytes of single tokens are the bytes of their text."""

from __future__ import annotations

import pytest
from testkit.own_tokenizers import MODELS, needs, own_tokenizer
from testkit.tokenizers_for_tests import trained
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentgym.render.token_bytes import TokenBytes

TEXT = "a🧑‍🚀𝒳 é  漢\n\t<tool_call> Ġ"


def joined(tokenizer: PreTrainedTokenizerFast, text: str) -> bytes:
    token_bytes = TokenBytes(tokenizer)
    return b"".join(token_bytes.of(one) or b"?" for one in tokenizer.encode(text, add_special_tokens=False))


def test_byte_level_tokens_have_the_bytes_that_they_spell() -> None:
    assert joined(trained(), TEXT) == TEXT.encode()


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in MODELS])
def test_tokens_of_real_models_have_the_bytes_of_their_text(name: str) -> None:
    assert joined(own_tokenizer(name), TEXT) == TEXT.encode()


def test_bytes_are_unknown_where_only_a_replacement_character_is() -> None:
    tokenizer = Tokenizer(models.WordLevel({"word": 0, "\ufffd": 1}, unk_token="\ufffd"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    token_bytes = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=tokenizer))  # type: ignore[no-untyped-call]
    assert [token_bytes.of(0), token_bytes.of(1)] == [b"word", None]
