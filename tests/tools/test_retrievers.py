"""Every local retriever, on one small corpus: ranks, refusals, failures."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from testkit.corpora import DOCUMENTS, WordEmbedder

from agentgym.errors import ClosedError, CorruptDataError, EnvError, ToolError, UsageError
from agentgym.tools.retrieval.corpus import corpus_of, document_from, jsonl_corpus
from agentgym.tools.retrieval.fts5 import Fts5Retriever, match_expression
from agentgym.tools.retrieval.indexes import BACKENDS, HybridRetriever, IndexOptions, open_retriever
from agentgym.tools.retrieval.types import Document, Hit, Retriever, adocument, asearch
from agentgym.tools.retrieval.words import snippet_of

CORPUS = corpus_of(DOCUMENTS)
BY_WORDS = ("fts5", "tantivy")


@pytest.fixture(scope="module")
def retrievers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Retriever]]:
    cache = tmp_path_factory.mktemp("cache")
    opened = {
        name: open_retriever(CORPUS, IndexOptions(backend=name, embedder=WordEmbedder(), cache=cache))
        for name in BACKENDS
    }
    yield opened
    for retriever in opened.values():
        retriever.close()


@pytest.fixture(params=BACKENDS)
def retriever(request: pytest.FixtureRequest, retrievers: dict[str, Retriever]) -> Retriever:
    return retrievers[request.param]


def ids(hits: tuple[Hit, ...]) -> list[str]:
    return [hit.doc_id for hit in hits]


def test_the_passage_that_shares_the_words_is_first(retriever: Retriever) -> None:
    assert ids(retriever.search("Which dice game did Lester Smith make?", 3))[0] == "dice"
    assert ids(retriever.search("a masculine Akkadian word", 3))[0] == "lilu"


def test_scores_fall_and_k_is_kept(retriever: Retriever) -> None:
    hits = retriever.search("demon demons city dice game", 3)
    assert len(hits) == 3
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert retriever.search("demon", 0) == ()
    assert len(retriever.search("demon", 10**30)) <= len(DOCUMENTS)


def test_documents_are_given_whole(retriever: Retriever) -> None:
    assert retriever.document("gallu") == DOCUMENTS[1]
    assert retriever.document("café").text == DOCUMENTS[4].text
    assert len(retriever) == len(DOCUMENTS)


@pytest.mark.parametrize("doc_id", ["galu", "", "\0", "\ud800", "x" * 100_000, "' OR 1=1 --"])
def test_an_unknown_document_is_the_policys_doing(retriever: Retriever, doc_id: str) -> None:
    with pytest.raises(ToolError, match="no document") as raised:
        retriever.document(doc_id)
    assert raised.value.error_type == "unknown_document"
    assert len(str(raised.value)) < 1500
    assert "gallu" in str(raised.value) or doc_id != "galu"


@pytest.mark.parametrize("query", ["", "  ", "?!", '"', "\0", "___", "\ud800"])
def test_a_query_without_a_word_is_the_policys_doing(retriever: Retriever, query: str) -> None:
    with pytest.raises(ToolError, match="no word") as raised:
        retriever.search(query, 3)
    assert raised.value.error_type == "invalid_query"


HOSTILE = st.lists(
    st.sampled_from(
        [
            '"',
            "'",
            "*",
            "^",
            "(",
            ")",
            ":",
            "-",
            "+",
            "{",
            "}",
            "[",
            "]",
            "\\",
            "/",
            "~",
            "\0",
            ";--",
            " AND ",
            " OR ",
            " NOT ",
            " NEAR(",
            "title:",
            "IN [",
            " TO ",
            "lilu",
            "demon",
            "DROP TABLE documents",
            "é",
            "北京",
            "\ud800",
        ]
    )
).map("".join)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.one_of(HOSTILE, st.text()))
@example(query="lilu " * 20_000)
@example(query="x" * 100_000)
@example(query=" ".join(f"w{n}" for n in range(30_000)))
@example(query="SELECT * FROM documents; DROP TABLE documents")
def test_no_query_breaks_a_retriever(backend: str, retrievers: dict[str, Retriever], query: str) -> None:
    try:
        hits = retrievers[backend].search(query, 3)
    except ToolError as error:
        assert error.error_type == "invalid_query"
    else:
        assert len(hits) <= 3
    assert len(retrievers[backend]) == len(DOCUMENTS)


@pytest.mark.parametrize("backend", BY_WORDS)
def test_stems_match(backend: str, retrievers: dict[str, Retriever]) -> None:
    assert ids(retrievers[backend].search("gallus haul a victim", 1)) == ["gallu"]
    assert retrievers[backend].search("zzz", 3) == ()


def test_words_of_every_document_are_looked_for_if_there_are_no_others(tmp_path: Path) -> None:
    same = corpus_of([Document(str(number), "", f"demon number{number}") for number in range(20)])
    for backend in BY_WORDS:
        retriever = open_retriever(same, IndexOptions(backend=backend, cache=tmp_path))
        assert len(retriever.search("demon", 3)) == 3
        assert ids(retriever.search("demon number7", 3)) == ["7"]  # one word tells more than all that share the other


def test_fts5_weighs_titles_more(retrievers: dict[str, Retriever]) -> None:
    assert ids(retrievers["fts5"].search("demons", 9))[0] == "dice"


def test_fts5_folds_accents(retrievers: dict[str, Retriever]) -> None:
    assert ids(retrievers["fts5"].search("CAFE", 1)) == ["café"]
    assert ids(retrievers["fts5"].search("北京", 1)) == ["café"]


def test_rare_words_choose_and_all_words_score() -> None:
    counts = {"common": 500, "frequent": 950, "rare": 10, "everywhere": 90_000}
    assert match_expression(counts, 100_000) == '("rare" OR "common") AND ("rare" OR "common" OR "frequent")'
    assert match_expression({"everywhere": 90_000}, 100_000) == '"everywhere"'
    assert match_expression({"gone": 0}, 100_000) == ""


def test_a_snippet_shows_the_words(retriever: Retriever) -> None:
    text = "It had many temples. " * 60 + "The ziggurat was built by Ur-Nammu. " + "It fell into ruin. " * 60
    shown = snippet_of(text, ["ziggurat", "built"])
    assert "ziggurat was built" in shown
    assert shown.startswith("… ") and shown.endswith(" …") and len(shown) <= 330
    assert snippet_of("", ["a"]) == ""
    assert len(snippet_of("x" * 1000, ["y"])) <= 330


def test_coroutines_ask_local_retrievers_inline(retriever: Retriever) -> None:
    async def ask() -> tuple[tuple[Hit, ...], Document, int]:
        hits = await asearch(retriever, "dice game", 1)
        return hits, await adocument(retriever, hits[0].doc_id), threading.active_count()

    before = threading.active_count()
    assert asyncio.run(ask()) == (retriever.search("dice game", 1), DOCUMENTS[3], before)


def test_threads_and_forks_have_connections_of_their_own(retrievers: dict[str, Retriever]) -> None:
    expected = retrievers["fts5"].search("demon", 3)
    answers: list[tuple[Hit, ...]] = []
    threads = [threading.Thread(target=lambda: answers.append(retrievers["fts5"].search("demon", 3))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 4
    child = os.fork()
    if child == 0:
        os._exit(0 if retrievers["fts5"].search("demon", 3) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("backend", ["fts5", "tantivy", "dense"])
def test_a_broken_index_is_no_error_for_the_model(backend: str, tmp_path: Path) -> None:
    options = IndexOptions(backend=backend, embedder=WordEmbedder(), cache=tmp_path)
    open_retriever(CORPUS, options).close()
    (database,) = tmp_path.glob("indexes/*/documents.sqlite")
    database.write_bytes(b"no database at all" * 100)
    with pytest.raises(EnvError, match="move the folder away"):
        open_retriever(CORPUS, options)


def test_a_closed_retriever_says_so(tmp_path: Path) -> None:
    retriever = open_retriever(CORPUS, IndexOptions(cache=tmp_path))
    assert isinstance(retriever, Fts5Retriever)
    retriever.close()
    retriever.close()
    with pytest.raises(ClosedError):
        retriever.search("demon", 1)


def test_an_empty_corpus_has_no_hits(tmp_path: Path) -> None:
    for backend in ("fts5", "tantivy", "dense"):
        options = IndexOptions(backend=backend, embedder=WordEmbedder(), cache=tmp_path)
        retriever = open_retriever(corpus_of([]), options)
        assert (len(retriever), retriever.search("demon", 3)) == (0, ())


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="did you mean 'fts5'"):
        IndexOptions(backend="fts4")
    with pytest.raises(UsageError, match="needs an embedder"):
        IndexOptions(backend="dense")


def test_a_hybrid_is_of_one_corpus(retrievers: dict[str, Retriever], tmp_path: Path) -> None:
    other = open_retriever(corpus_of(DOCUMENTS[:1]), IndexOptions(cache=tmp_path))
    with pytest.raises(UsageError, match="of the same corpus"):
        HybridRetriever([retrievers["fts5"], other])


def test_faiss_and_the_matrix_agree(tmp_path: Path, retrievers: dict[str, Retriever]) -> None:
    pytest.importorskip("faiss")
    options = IndexOptions(backend="dense", embedder=WordEmbedder(), cache=tmp_path, faiss_factory="Flat")
    found = open_retriever(CORPUS, options).search("the dice game", 3)
    assert ids(found) == ids(retrievers["dense"].search("the dice game", 3))


# ------------------------------------------------------------------------------------------------------- corpora


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        '{"id": 1, "title": "A", "text": "one", "url": "u"}\n\n{"_id": "2", "contents": "\\"B\\"\\ntwo\\nlines"}\n'
    )
    corpus = jsonl_corpus(path)
    assert list(corpus.documents()) == [Document("1", "A", "one", "u"), Document("2", "B", "two\nlines")]
    assert list(corpus.documents()) == list(corpus.documents())
    before = corpus.digest
    path.write_text('{"id": 1, "text": "other"}\n')
    assert jsonl_corpus(path).digest != before


@pytest.mark.parametrize("line", ["{", "[]", "7", '{"title": "no id", "text": ""}', '{"id": 1, "text": 5}', "\xff"])
def test_a_line_that_is_no_document_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 1, "text": "one"}\n' + line + "\n", encoding="latin-1")
    with pytest.raises(CorruptDataError, match=r"corpus.jsonl, line 2"):
        open_retriever(jsonl_corpus(path), IndexOptions(cache=tmp_path))
    assert list((tmp_path / "indexes").glob("*building*")) == []


def test_a_file_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("\n \n")
    with pytest.raises(CorruptDataError, match=r"corpus\.jsonl holds no documents"):
        jsonl_corpus(tmp_path / "corpus.jsonl")


def test_a_text_that_is_no_string_is_named() -> None:
    with pytest.raises(ValueError, match=r"a document's text is a string, not \"\['x'\]\" \(list\)"):
        document_from({"id": 5, "text": ["x"]})


def test_an_id_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="'a'"):
        open_retriever(corpus_of([Document("a", "", "")] * 2), IndexOptions(cache=tmp_path))


def test_a_corpus_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no corpus at"):
        jsonl_corpus(tmp_path / "none.jsonl")


def test_tantivy_finds_accents_and_long_runs(tmp_path: Path) -> None:
    run = "北京是中华人民共和国的首都也是全国的政治中心和文化中心"
    corpus = corpus_of([Document("1", "Zoë", "She met René in Málaga."), Document("2", "Run", f"x {run} y")])
    for backend in ("fts5", "tantivy"):
        retriever = open_retriever(corpus, IndexOptions(backend=backend, cache=tmp_path))
        try:
            found = [
                [hit.doc_id for hit in retriever.search(query, 2)] for query in ("Zoe", "rene", "Zoë", run, "a" * 90)
            ]
            assert found == [["1"], ["1"], ["1"], ["2"], []], backend
        finally:
            retriever.close()
