"""search, open and find as an agent meets them: texts, budgets, refusals, state."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.corpora import DOCUMENTS

from agentgym import ToolEnv
from agentgym.errors import ConfigError, EnvError
from agentgym.tools.reading import CUT, Budget, cut_to_tokens, estimated_tokens, pages_of
from agentgym.tools.retrieval.corpus import corpus_of
from agentgym.tools.retrieval.indexes import IndexOptions, open_retriever
from agentgym.tools.retrieval.types import Document, Hit
from agentgym.tools.search import Reading, SearchTools, results_text
from agentgym.types import Message, Task, ToolCall

LONG = Document("long", "A long one", "\n\n".join(f"Paragraph {n} tells of thing{n} and no more." for n in range(200)))


class Reader(SearchTools, ToolEnv):
    """Read."""

    max_turns = 50

    def start(self, task: Task) -> str:
        self.reading = Reading()
        return "Read."


@pytest.fixture
def env(tmp_path: Path) -> Reader:
    env = Reader()
    env.retriever = open_retriever(corpus_of((*DOCUMENTS, LONG)), IndexOptions(cache=tmp_path))
    env.reset(seed=0)
    return env


def said(env: Reader, tool: str, **arguments: object) -> str:
    observation, *_ = env.step(Message("assistant", "", (ToolCall(tool, arguments),)))
    return observation[0].text


def test_an_agent_searches_opens_and_finds(env: Reader) -> None:
    results = said(env, "search", query="Akkadian spirit", k=2)
    assert results.startswith("1. Lilu (mythology) [id: lilu]\nA lilu is a masculine")
    assert said(env, "open", doc_id="lilu").startswith("Lilu (mythology) [page 1 of 1]\nA lilu")
    assert said(env, "find", text="AKKADIAN word").startswith("1 found on page 1:\n1. A lilu is")
    assert said(env, "find", text="zebra") == "Not on page 1 of 1."
    assert env.reading == Reading(found=("lilu",), doc_id="lilu", page=1)
    assert said(env, "open", doc_id="gallu").startswith("Gallu [page 1 of 1] https://x.example/g\n")
    assert said(env, "open", doc_id="empty") == "Untitled [page 1 of 1]\n[no text]"


def test_a_long_document_has_pages(env: Reader) -> None:
    first = said(env, "open", doc_id="long")
    num_pages = int(first.partition("[page 1 of ")[2].partition("]")[0])
    assert num_pages > 2
    assert "thing0 " in first and "thing199 " not in first
    assert said(env, "find", text="thing199").endswith(f"; it is on page {num_pages}.")
    assert "thing199 " in said(env, "open", doc_id="long", page=num_pages)
    assert said(env, "find", text="thing199").startswith(f"1 found on page {num_pages}:")
    assert "places]" in said(env, "find", text="tells of")


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("search", {"query": "?"}, "no word"),
        ("search", {"query": "a", "k": 0}, "k is 1 to 20"),
        ("search", {"query": "a", "k": 10**9}, "k is 1 to 20"),
        ("open", {"doc_id": "lilo"}, "no document 'lilo'; there are for example 'lilu'"),
        ("open", {"doc_id": "lilu", "page": 2}, "pages 1 to 1"),
        ("open", {"doc_id": "lilu", "page": 0}, "pages 1 to 1"),
        ("find", {"text": "a"}, "call open first"),
    ],
)
def test_what_an_agent_does_wrong_is_said(env: Reader, tool: str, arguments: dict[str, object], words: str) -> None:
    text = said(env, tool, **arguments)
    assert text.startswith("Error: ") and words in text
    assert env.reading == Reading()


@pytest.mark.parametrize("text", ["", "  ", "a" * 201])
def test_find_takes_a_phrase(env: Reader, text: str) -> None:
    said(env, "open", doc_id="lilu")
    assert "1 to 200 characters" in said(env, "find", text=text)


def test_nothing_fits(env: Reader) -> None:
    assert said(env, "search", query="zzzz") == "No document fits; try other words."


def test_a_failing_index_is_no_answer(env: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(query: str, k: int) -> tuple[Hit, ...]:
        raise EnvError("the disk went away")

    monkeypatch.setattr(env.retriever, "search", fail)
    with pytest.raises(EnvError, match="went away"):
        said(env, "search", query="a word")


@settings(deadline=None)
@given(
    hits=st.lists(
        st.builds(Hit, st.text(max_size=8), st.text(max_size=300), st.text(max_size=900), st.just(1.0)), max_size=20
    ),
    result_tokens=st.integers(100, 800),
)
def test_results_keep_to_their_budget(hits: list[Hit], result_tokens: int) -> None:
    shown = results_text(hits, Budget(result_tokens=result_tokens))
    heads = sum(estimated_tokens(f"20. {CUT} [id: {hit.doc_id}]{CUT}\n\n") for hit in hits)  # always shown
    assert estimated_tokens(shown) <= result_tokens + heads


@settings(deadline=None)
@given(text=st.text(max_size=400), max_tokens=st.integers(8, 60))
def test_a_cut_text_fits_and_says_so(text: str, max_tokens: int) -> None:
    cut = cut_to_tokens(text, max_tokens, Budget())
    assert estimated_tokens(cut) <= max_tokens
    assert cut == text or (cut.endswith(CUT) and text.startswith(cut[: -len(CUT)]))


@settings(deadline=None)
@given(text=st.text(alphabet="ab .\n北", max_size=600), page_tokens=st.integers(16, 40))
def test_pages_lose_nothing_and_fit(text: str, page_tokens: int) -> None:
    budget = Budget(page_tokens=page_tokens)
    pages = pages_of(text, budget)
    assert "".join("".join(pages).split()) == "".join(text.split())
    assert all(estimated_tokens(page) <= page_tokens for page in pages)


def test_a_tokenizer_may_count(env: Reader) -> None:
    by_word = Budget(page_tokens=16, count_tokens=lambda text: len(text.split()))
    assert all(len(page.split()) <= 16 for page in pages_of(LONG.text, by_word))
    with pytest.raises(ConfigError, match="at least 16"):
        Budget(page_tokens=3)
