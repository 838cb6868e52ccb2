"""The cache of indexes: built once, whole or not at all, whoever builds at the same time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.corpora import DOCUMENTS, WordEmbedder

from agentgym.cache import built_once, cache_folder
from agentgym.errors import UsageError
from agentgym.tools.retrieval.corpus import Corpus, corpus_of
from agentgym.tools.retrieval.indexes import BACKENDS, IndexOptions, open_retriever
from agentgym.tools.retrieval.types import Document


def test_it_is_built_once(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    num_read = 0

    def documents() -> Iterator[Document]:
        nonlocal num_read
        num_read += 1
        yield from DOCUMENTS

    corpus = Corpus("made-up-v1", documents)
    for backend in BACKENDS * 2:
        open_retriever(corpus, IndexOptions(backend=backend, embedder=embedder, cache=tmp_path)).close()
    assert num_read == 3  # a hybrid has the two that are there already
    assert embedder.num_texts == len(DOCUMENTS)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)  # root, who runs tests in containers, may write everywhere
    with pytest.raises(UsageError, match=r"cache .* cannot be written \(Permission denied\); set AGENTGYM_CACHE"):
        built_once(tmp_path / "new" / "index", lambda folder: None)


def test_other_content_and_other_settings_are_other_indexes(tmp_path: Path) -> None:
    open_retriever(corpus_of(DOCUMENTS), IndexOptions(cache=tmp_path)).close()
    assert len(open_retriever(corpus_of(DOCUMENTS[:2]), IndexOptions(cache=tmp_path))) == 2
    for name in ("one", "another"):
        options = IndexOptions(backend="dense", embedder=WordEmbedder(name), cache=tmp_path)
        open_retriever(corpus_of(DOCUMENTS), options).close()
    assert len([path for path in (tmp_path / "indexes").iterdir() if path.is_dir()]) == 4


def test_a_build_that_fails_leaves_nothing_that_looks_built(tmp_path: Path) -> None:
    def documents() -> Iterator[Document]:
        yield DOCUMENTS[0]
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        open_retriever(Corpus("fails", documents), IndexOptions(cache=tmp_path))
    assert [path.suffix for path in (tmp_path / "indexes").iterdir()] == [".lock"]


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "index.building-abc"
    left.mkdir()
    (left / "half").write_text("half")
    folder = built_once(tmp_path / "index", lambda empty: (empty / "whole").touch())
    assert sorted(path.name for path in folder.iterdir()) == ["whole"]
    assert not left.exists()


BUILDER = """
import sys
from pathlib import Path
from agentgym.tools.retrieval.corpus import Corpus
from agentgym.tools.retrieval.indexes import IndexOptions, open_retriever
from agentgym.tools.retrieval.types import Document

def documents():
    with open(sys.argv[2], "a") as log:
        log.write("read\\n")
    for number in range(3000):
        yield Document(str(number), f"Title {number}", f"Passage of number {number}.")

options = IndexOptions(backend=sys.argv[3], cache=Path(sys.argv[1]))
retriever = open_retriever(Corpus("numbers", documents, 3000), options)
print(len(retriever), retriever.search("number 77", 1)[0].doc_id)
"""


@pytest.mark.parametrize("backend", ["fts5", "tantivy"])
def test_processes_that_want_it_at_once_get_one(tmp_path: Path, backend: str) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", BUILDER, str(tmp_path), str(log), backend]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(3)]
    assert [process.communicate(timeout=120)[0].split() for process in running] == [["3000", "77"]] * 3
    assert log.read_text() == "read\n"


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AGENTGYM_CACHE", raising=False)
    assert cache_folder() == tmp_path / "agentgym"
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x"
