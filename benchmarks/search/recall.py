"""Share of the passages that answer HotpotQA's questions that each retriever returns among its first five.

    python benchmarks/search/recall.py QA_FOLDER --model MODEL_FOLDER --output benchmarks/search/recall
    ... --backends fts5 tantivy         these alone; the output's rows of others stay, each with its commit

QA_FOLDER holds ``hotpotqa_train.json`` (100 questions with the titles of the passages that answer them) and the
passages of HotpotQA, 2WikiMultihopQA and MuSiQue; those of the latter two are distractors. Recall at 5 is the mean over
the questions of the share of gold titles among the first five results' titles: where a distractor is a passage of the
same article, it counts. The question itself is the query, once: no retriever can know a bridge it has not read about.
Times are of processor time, a query's snippets included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import about_this_machine

from agentgym.tools.retrieval.corpus import Corpus, corpus_of
from agentgym.tools.retrieval.embedders import SentenceTransformerEmbedder
from agentgym.tools.retrieval.indexes import BACKENDS, IndexOptions, open_retriever
from agentgym.tools.retrieval.types import Document, Retriever

K = 5


def passages(folder: Path) -> Corpus:
    """Yield all passages, HotpotQA's first."""
    hotpot = json.loads((folder / "hotpotqa_train_corpus.json").read_text())
    documents = [Document(f"hotpot-{n}", title, "".join(lines)) for n, (title, lines) in enumerate(hotpot.items())]
    for name in ("2wikimultihopqa", "musique_train"):
        rows = json.loads((folder / f"{name}_corpus.json").read_text())
        documents += [Document(f"{name}-{n}", row["title"], row["text"]) for n, row in enumerate(rows)]
    return corpus_of(documents)


def measured(retriever: Retriever, questions: list[dict[str, Any]]) -> dict[str, float]:
    """Measure recall and time of one retriever."""
    recalls, both, taken_ms = [], [], []
    for question in questions:
        gold = {title for title, _ in question["supporting_facts"]}
        began = time.process_time()
        hits = retriever.search(question["question"], K)
        taken_ms.append(1000 * (time.process_time() - began))
        recalls.append(len(gold & {hit.title for hit in hits}) / len(gold))
        both.append(recalls[-1] == 1.0)
    return {
        "recall_at_5": round(statistics.mean(recalls), 3),
        "all_gold_at_5": round(statistics.mean(both), 3),
        "query_cpu_ms_p50": round(statistics.median(taken_ms), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("qa_folder", type=Path)
    parser.add_argument("--model", default="", help="model for dense and hybrid")
    parser.add_argument("--model-name", default="", help="name of the model in the results")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--output", type=Path, help="without its suffix")
    args = parser.parse_args()
    questions = json.loads((args.qa_folder / "hotpotqa_train.json").read_text())
    corpus = passages(args.qa_folder)
    embedder = SentenceTransformerEmbedder(args.model) if args.model else None
    about = about_this_machine("tantivy")
    rows = rows_so_far(args.output)
    with tempfile.TemporaryDirectory() as cache:
        for backend in args.backends:
            began = time.process_time()
            options = IndexOptions(backend=backend, embedder=embedder, cache=Path(cache))
            retriever = open_retriever(corpus, options)
            built_s = round(time.process_time() - began, 1)
            rows[backend] = {**measured(retriever, questions), "build_cpu_s": built_s, "commit": about["commit"]}
            rows[backend] |= {"embedder": args.model_name} if backend in ("dense", "hybrid") else {}
            retriever.close()
    sizes = {"num_questions": len(questions), "num_passages": corpus.num_documents}
    write({**about, **sizes, "retrievers": rows}, args.output)


def rows_so_far(output: Path | None) -> dict[str, Any]:
    """Return the results of an earlier measurement, if there are any."""
    if output is None or not output.with_suffix(".json").is_file():
        return {}
    rows: dict[str, Any] = json.loads(output.with_suffix(".json").read_text())["retrievers"]
    return rows


def write(results: dict[str, Any], output: Path | None) -> None:
    """Write JSON and a table."""
    print(json.dumps(results, indent=2))
    if output is None:
        return
    output.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
    rows = [
        f"| {name} | {row['recall_at_5']:.3f} | {row['all_gold_at_5']:.2f} | {row['query_cpu_ms_p50']} "
        f"| {row['build_cpu_s']} | {row.get('embedder', '')} | {row['commit']} |"
        for name, row in results["retrievers"].items()
    ]
    output.with_suffix(".md").write_text(
        f"{results['num_questions']} questions of HotpotQA, {results['num_passages']} passages; {results['machine']}, "
        f"load {results['load_average']}, {results['date']}. A hybrid's index is the two built before it.\n\n"
        "| retriever | recall@5 | all gold in 5 | query p50, CPU ms | build, CPU s | embeddings | commit |\n"
        "|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()
