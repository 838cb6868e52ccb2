"""Real questions over real passages, and small files in every format."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from testkit.qa_data import HOTPOTQA, MUSIQUE, QA, needs_hotpotqa, needs_musique

from agentgym.check import check_env
from agentgym.envs.search.question_files import read_questions
from agentgym.envs.search.question_set import PassageBook, split_of
from agentgym.envs.search.searchqa import SearchQAEnv
from agentgym.errors import CorruptDataError, EnvError, UnknownNameError, UsageError
from agentgym.registry import make
from agentgym.tools.retrieval.memory import MemoryRetriever
from agentgym.tools.retrieval.types import Document
from agentgym.types import Task

KUR, ANU = ["Kur", ["Kur is a land.", " It lies below."]], ["Anu", ["Anu rules the sky."]]
HOTPOT: dict[str, Any] = {
    "_id": "h1",
    "question": "Where does Kur lie?",
    "answer": "below",
    "supporting_facts": [["Kur", 1], ["Anu", 0], ["Kur", 0]],
    "context": [ANU, KUR],
}
MUSIQUE_RECORD = {
    "id": "2hop__1_2",
    "question": "Who rules what is above Kur?",
    "answer": "Anu",
    "answer_aliases": ["An", "Anu"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Kur", "paragraph_text": "Kur is below the sky.", "is_supporting": True},
        {"idx": 1, "title": "Kur", "paragraph_text": "Kur is also a river.", "is_supporting": False},
        {"idx": 2, "title": "Sky", "paragraph_text": "Anu rules the sky.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 1, "question": "Kur >> above", "answer": "sky", "paragraph_support_idx": 0},
        {"id": 2, "question": "who rules #1", "answer": "Anu", "paragraph_support_idx": 2},
    ],
}


def written(folder: Path, content: Any, name: str = "questions.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def qa(questions: str, **kwargs: Any) -> SearchQAEnv:
    env = make("agentgym/SearchQA-v0", questions=questions, **kwargs)
    assert isinstance(env, SearchQAEnv)
    return env


def all_tasks(env: SearchQAEnv) -> Sequence[Task]:
    return [task for split in ("train", "valid", "test") for task in env.tasks(split)]


def successes(env: SearchQAEnv) -> list[bool]:
    """Whether the gold policy answers, question by question."""
    found = []
    for task in all_tasks(env):
        env.reset(options={"task": task})
        is_over, total = False, 0.0
        while not is_over:
            _, reward, terminated, truncated, info = env.step(env.oracle())
            assert info["is_valid"]
            total += reward
            is_over = terminated or truncated
        assert info["success"] == (total == 1.0)
        found.append(info["success"])
    return found


# ---------------------------------------------------------------------------------------------------------- formats


def test_hotpotqa_is_read_as_its_authors_and_as_hugging_face_write_it(tmp_path: Path) -> None:
    lacking = {**HOTPOT, "supporting_facts": [*HOTPOT["supporting_facts"], ["Gone", 0]]}
    (own,) = read_questions(written(tmp_path, [lacking]))
    assert (own.id, own.text, own.answers) == ("h1", "Where does Kur lie?", ("below",))
    assert [passage.title for passage in own.passages] == ["Anu", "Kur"]
    assert own.passages[1].text == "Kur is a land. It lies below."
    assert own.gold == (1, 0), "in the order of the supporting facts, each once, what is not there left out"
    assert own.missing == ("Gone",)
    columns = {
        **{name: HOTPOT[name] for name in ("question", "answer")},
        "id": "h1",
        "context": {"title": ["Anu", "Kur"], "sentences": [ANU[1], KUR[1]]},
        "supporting_facts": {"title": ["Kur", "Anu", "Kur", "Gone"], "sent_id": [1, 0, 0, 0]},
    }
    assert read_questions(written(tmp_path, json.dumps(columns) + "\n", "lines.jsonl")) == (own,)
    assert read_questions(written(tmp_path, [lacking]), "2wiki") == (own,)


def test_passages_that_a_file_calls_gold_and_does_not_hold_are_named(tmp_path: Path) -> None:
    whole = {**HOTPOT, "_id": "h2"}
    lacking = {**HOTPOT, "supporting_facts": [["Kur", 1], ["Gone", 0]]}
    with pytest.warns(UserWarning, match="1 of 2 questions .* 'Gone' of question 'h1'"):
        qa(written(tmp_path, [whole, lacking]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qa(written(tmp_path, [whole], "whole.json"))


def test_musique_is_read_with_aliases_and_without_what_cannot_be_answered(tmp_path: Path) -> None:
    unanswerable = {**MUSIQUE_RECORD, "id": "2hop__3_4", "answerable": False}
    lines = "\n".join(map(json.dumps, (MUSIQUE_RECORD, unanswerable)))
    (question,) = read_questions(written(tmp_path, lines, "musique.jsonl"))
    assert (question.id, question.answers, question.gold) == ("2hop__1_2", ("Anu", "An"), (0, 2))
    env = qa(written(tmp_path, lines, "musique.jsonl"))
    assert [document.id for document in env.set.documents] == ["Kur", "Kur #2", "Sky"]
    assert env.set.questions["2hop__1_2"].gold == ("Kur", "Sky")
    assert successes(env) == [True]


@pytest.mark.parametrize(
    "record",
    [
        {"question": "who rules the sky", "answer": ["Anu", "An"]},
        {
            "question": "who rules the sky",
            "answers": ["Anu", "An"],
            "positive_ctxs": [{"title": "Sky", "text": "Anu."}],
        },
        {"id": "test_0", "question": "who rules the sky", "golden_answers": ["Anu", "An"]},
    ],
    ids=["nq-open", "dpr", "flashrag"],
)
def test_natural_questions_are_read_in_three_shapes(tmp_path: Path, record: dict[str, Any]) -> None:
    (question,) = read_questions(written(tmp_path, json.dumps(record), "nq.jsonl"))
    assert (question.text, question.answers) == ("who rules the sky", ("Anu", "An"))
    assert question.id == record.get("id", question.id) and question.id
    assert len(question.passages) == len(question.gold) == len(record.get("positive_ctxs", ()))
    corpus = written(tmp_path, [{"title": "Sky", "text": "Anu rules the sky."}], "corpus.json")
    env = qa(str(tmp_path / "nq.jsonl"), corpus=corpus)
    assert successes(env) == [True]


def test_a_data_set_of_the_datasets_library_is_read(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "nq"
    folder.mkdir()
    written(folder, json.dumps({"question": "who rules the sky", "answer": ["Anu"]}) + "\n", "train.jsonl")
    (question,) = read_questions(f"datasets:{folder}@train")
    assert question.answers == ("Anu",)
    with pytest.raises(UsageError, match="the library datasets has no"):
        read_questions(f"datasets:{tmp_path / 'nothing'}")


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, UsageError, "no file"),
        ("[]", UsageError, "holds no questions"),
        ("version https://git-lfs", CorruptDataError, "is not JSON (a pointer to the real file, or cut off?)"),
        ([{"text": "hm"}], UsageError, "cannot tell the format from the keys text"),
        ([{**HOTPOT, "context": [["Kur"]]}], CorruptDataError, "question 0 is not as its format has it"),
        ([{"_id": "1", "context": [], "answer": "x"}], CorruptDataError, "'question' is missing"),
        ([{**HOTPOT, "answer": " "}], UsageError, "none of 1 questions has an answer"),
    ],
)
def test_bad_files_are_refused_in_words(tmp_path: Path, content: Any, error: type[Exception], words: str) -> None:
    path = str(tmp_path / "none.json") if content is None else written(tmp_path, content)
    with pytest.raises(error, match=re.escape(words)):
        read_questions(path)


def test_names_that_do_not_exist_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, [HOTPOT])
    with pytest.raises(UnknownNameError, match="did you mean 'hotpotqa'"):
        qa(path, format="hotpot")
    with pytest.raises(UnknownNameError, match=r"did you mean 'fts5'.*or the URL of a search server"):
        qa(path, retriever="fts")
    with pytest.raises(UnknownNameError, match="unknown split 'dev'"):
        qa(path).tasks("dev")
    with pytest.raises(UsageError, match="is none of the 1 questions of this file"):
        qa(path).reset(options={"task": Task(id="other", split="train", seed=0)})
    monkeypatch.delenv("AGENTGYM_SHARED_DATA", raising=False)
    with pytest.raises(UsageError, match=r"questions=.* \(AGENTGYM_SHARED_DATA is not set\)"):
        make("agentgym/SearchQA-v0")


# ----------------------------------------------------------------------------------------------------------- corpora


def test_a_corpus_of_several_files_has_each_passage_once(tmp_path: Path) -> None:
    files = [
        written(tmp_path, {"Kur": ["Kur is a land.", " It lies below."], "Ur": "A city."}, "a.json"),
        written(tmp_path, [{"title": "Kur", "text": "Kur is a  land. It lies below. "}], "b.json"),
        written(
            tmp_path,
            '{"id": "7", "contents": "\\"Ea\\"\\nEa is wise."}\n{"title": "Ur", "text": "A beast."}',
            "c.jsonl",
        ),
    ]
    env = qa(written(tmp_path, [HOTPOT]), corpus=files)
    documents = {document.id: document.text for document in env.set.documents}
    assert documents == {
        "Anu": "Anu rules the sky.",
        "Kur": "Kur is a land. It lies below.",
        "Ur": "A city.",
        "Ea": "Ea is wise.",
        "Ur #2": "A beast.",
    }
    with pytest.raises(CorruptDataError, match="item 0 is no passage with title and text: it has id"):
        PassageBook().add_files([written(tmp_path, [{"id": "1"}], "bad.json")])


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, [HOTPOT])
    assert len(qa(path).set.questions) == 1
    assert qa(path).set is qa(path).set
    written(tmp_path, [HOTPOT, {**HOTPOT, "_id": "h2", "question": "And Anu?"}])
    assert len(qa(path).set.questions) == 2


@pytest.mark.parametrize("retriever", ["memory", "fts5"])
def test_retrievers_by_name_answer_alike(tmp_path: Path, retriever: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    env = qa(written(tmp_path, [HOTPOT]), retriever=retriever)
    assert successes(env) == [True]


def test_a_retriever_may_be_handed_in(tmp_path: Path) -> None:
    env = qa(written(tmp_path, [HOTPOT]), retriever=MemoryRetriever([Document("z", "Kur", "Another Kur.")]))
    env.reset(options={"task": "h1"})
    assert "[id: z]" in env.step("search: Kur")[0][0].text


def test_a_server_that_is_gone_is_no_reward(tmp_path: Path) -> None:
    client = pytest.importorskip("agentgym.tools.retrieval.client")
    options = client.ClientOptions(num_tries=1, timeout_s=0.5)
    env = qa(written(tmp_path, [HOTPOT]), retriever=client.RemoteRetriever("http://127.0.0.1:9", options))
    env.reset(options={"task": "h1"})
    with pytest.raises(EnvError):
        env.step("search: Kur")


# ------------------------------------------------------------------------------------------------------------ splits


def test_a_split_follows_from_the_question_id_alone(tmp_path: Path) -> None:
    records = [{**HOTPOT, "_id": f"q{number}"} for number in range(400)]
    env = qa(written(tmp_path, records))
    sizes = {split: len(env.tasks(split)) for split in ("train", "valid", "test")}
    assert sum(sizes.values()) == 400
    assert sizes["train"] == pytest.approx(240, abs=40) and sizes["test"] == pytest.approx(80, abs=30)
    few = qa(written(tmp_path, records[::7], "few.json"))
    for task in all_tasks(few):
        assert task.split == split_of(task.id)
        assert task in env.tasks(task.split)
        assert task.answers == ("below",)


# ------------------------------------------------------------------------------------------------------- real files


@needs_hotpotqa
def test_the_gold_policy_answers_all_of_hotpotqa() -> None:
    env = qa(str(HOTPOTQA), corpus=sorted(map(str, QA.glob("*_corpus.json"))))
    assert len(env.set.questions) == 100 and len(env.set.documents) > 9_000
    assert successes(env) == [True] * 100


@needs_hotpotqa
def test_hotpotqas_corpus_adds_nothing_to_the_passages_of_its_questions() -> None:
    env = qa(str(HOTPOTQA))
    with_corpus = qa(str(HOTPOTQA), corpus=str(QA / "hotpotqa_train_corpus.json"))
    assert len(env.set.documents) == len(with_corpus.set.documents)


@needs_hotpotqa
def test_the_environment_conforms_on_hotpotqa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_SHARED_DATA", str(QA.parent))
    report = check_env("agentgym/SearchQA-v0")
    assert report.passed, str(report)


@needs_musique
def test_the_gold_policy_answers_all_of_musique() -> None:
    env = qa(str(MUSIQUE))
    found = successes(env)
    assert len(found) > 50 and all(found)
