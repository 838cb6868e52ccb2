"""Speed of retrieval over generated passages of 100 words: queries in process, over HTTP, and a million passages.

    OMP_NUM_THREADS=1 python benchmarks/search/speed.py --output benchmarks/search/speed
    ... --parts query                   one part; the output's others stay, each with its commit and load

Queries are 8 words of a passage, frequent and rare ones alike, without stop words, like an English question of some 15
words. No query is repeated, and snippets are included. Times in process are wall-clock and processor time, each the
median of the rounds. Times of the service are wall-clock time over 8 and 16 connections of another process. The
processor time of server and client per query is given, too: on a busy machine only that shows what an idle one can do.
The million passages are indexed and searched in a child process. Its peak memory (resident, mapped files included)
contains that of Python and its imports.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import generated
import numpy as np
from machine import about_this_machine

from agentgym.tools.retrieval.client import RemoteRetriever
from agentgym.tools.retrieval.indexes import IndexOptions, open_retriever

NUM_DOCUMENTS, NUM_MANY_DOCUMENTS = 50_000, 1_000_000
NUM_QUERIES = 300
NUM_ROUNDS = 3
NUM_CONNECTIONS = (8, 16)
NUM_REQUESTS = 1_500
TINY = {"NUM_DOCUMENTS": 300, "NUM_MANY_DOCUMENTS": 600, "NUM_QUERIES": 10, "NUM_ROUNDS": 1, "NUM_REQUESTS": 40}
"""Sizes that test the script, whose figures mean nothing."""
K = 5


def asked(backend: str, num_documents: int, cache: Path, num_rounds: int = NUM_ROUNDS) -> dict[str, Any]:
    """Measure build and query times of one backend in this process."""
    began, began_cpu = time.perf_counter(), time.process_time()
    retriever = open_retriever(generated.corpus(num_documents), IndexOptions(backend=backend, cache=cache))
    built = {"build_wall_s": time.perf_counter() - began, "build_cpu_s": time.process_time() - began_cpu}
    rounds = []
    for number in range(num_rounds):
        taken = []
        for query in generated.queries(num_documents, NUM_QUERIES, seed=number + 1):
            began, began_cpu = time.perf_counter(), time.process_time()
            retriever.search(query, K)
            taken.append((1000 * (time.perf_counter() - began), 1000 * (time.process_time() - began_cpu)))
        rounds.append(np.percentile(np.array(taken), [50, 99], axis=0))
    (p50, p50_cpu), (p99, p99_cpu) = np.median(rounds, axis=0)
    retriever.close()
    times = {"query_ms_p50": p50, "query_ms_p99": p99, "query_cpu_ms_p50": p50_cpu, "query_cpu_ms_p99": p99_cpu}
    return {"backend": backend, "num_documents": num_documents, **rounded({**built, **times})}


def served(backend: str, workers: int, connections: int, corpus_file: Path, cache: Path) -> dict[str, Any]:
    """Measure queries per second of ``agentgym serve-search``, and their latency."""
    command = [sys.executable, "-m", "agentgym", "serve-search", str(corpus_file), "--port", "0", "--json"]
    command += ["--backend", backend, "--workers", str(workers), "--no-token"]
    environment = {**os.environ, "AGENTGYM_CACHE": str(cache)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        asyncio.run(_load(url, 200, connections))
        began, began_cpu = time.process_time(), _cpu_s(server.pid)
        rounds = [asyncio.run(_load(url, NUM_REQUESTS, connections)) for _ in range(NUM_ROUNDS)]
        client_cpu_s, server_cpu_s = time.process_time() - began, _cpu_s(server.pid) - began_cpu
        ours_cpu_s = asyncio.run(_asked_by_our_client(url, NUM_REQUESTS))
    finally:
        server.terminate()
        server.wait()
    per_s, p50, p99 = np.median(rounds, axis=0)
    cpu_ms = 1000 / (NUM_ROUNDS * NUM_REQUESTS)
    times = {"queries_per_s": per_s, "latency_ms_p50": p50, "latency_ms_p99": p99}
    costs = {
        "server_cpu_ms": server_cpu_s * cpu_ms,
        "client_cpu_ms": client_cpu_s * cpu_ms,
        "our_client_cpu_ms": 1000 * ours_cpu_s / NUM_REQUESTS,
    }
    return {"backend": backend, "workers": workers, "connections": connections, **rounded({**times, **costs})}


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and its children so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_s(int(child)) for child in children)


async def _load(url: str, num_requests: int, connections: int) -> tuple[float, float, float]:
    """Measure queries per second and latencies over kept connections, by bare HTTP, so that the client costs little."""
    address = urlsplit(url)
    waiting = iter(generated.queries(NUM_DOCUMENTS, num_requests, seed=7))
    taken: list[float] = []

    async def ask() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for query in waiting:
            body = json.dumps({"query": query, "k": K}).encode()
            head = f"POST /search HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            began = time.perf_counter()
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = int(answer.lower().partition(b"content-length:")[2].split()[0])
            assert json.loads(await reader.readexactly(length))["hits"]
            taken.append(1000 * (time.perf_counter() - began))
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(connections)))
    wall_s = time.perf_counter() - began
    return num_requests / wall_s, statistics.median(taken), float(np.percentile(taken, 99))


async def _asked_by_our_client(url: str, num_requests: int) -> float:
    """Return the processor seconds of the environments' client for as many queries, one after the other."""
    retriever = RemoteRetriever(url)
    began = time.process_time()
    for query in generated.queries(NUM_DOCUMENTS, num_requests, seed=8):
        await retriever.asearch(query, K)
    cpu_s = time.process_time() - began
    retriever.close()
    return cpu_s


def in_a_child(backend: str, num_documents: int) -> dict[str, Any]:
    """Measure a large corpus in a separate process."""
    command = [sys.executable, __file__, "--child", backend, str(num_documents)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def child(backend: str, num_documents: int) -> None:
    """Build the index; run in a separate process, so that its memory is measured apart from that of queries."""
    with tempfile.TemporaryDirectory() as cache:
        before_mb = _peak_mb()
        result = asked(backend, num_documents, Path(cache), num_rounds=1)
        size = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
        print(json.dumps({**result, "memory_mb": _peak_mb(), "memory_before_mb": before_mb, "disk_mb": size >> 20}))


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def rounded(values: dict[str, float]) -> dict[str, float]:
    """Round to three digits."""
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["query", "http", "million"])
    parser.add_argument("--output", type=Path, help="without its suffix")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes that test the script; the figures mean nothing")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tiny:
        globals().update(TINY)
    if args.child:
        child(args.child[0], int(args.child[1]))
        return
    results: dict[str, Any] = {}
    if args.output and args.output.with_suffix(".json").is_file():
        results = json.loads(args.output.with_suffix(".json").read_text())
    measure = {"query": queries_in_process, "http": services, "million": millions}
    for part in args.parts:
        about = about_this_machine("tantivy", "fastapi", "uvicorn", "httpx")
        rows = measure[part]()
        results[part] = {**about, "load_average_after": round(os.getloadavg()[0], 1), "rows": rows}
    print(json.dumps(results, indent=2))
    if args.output:
        args.output.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
        args.output.with_suffix(".md").write_text(tables(results))


def queries_in_process() -> list[dict[str, Any]]:
    """Measure both backends in this process."""
    with tempfile.TemporaryDirectory() as cache:
        return [asked(backend, NUM_DOCUMENTS, Path(cache)) for backend in ("fts5", "tantivy")]


def services() -> list[dict[str, Any]]:
    """Measure both backends behind HTTP, with one and with two processes."""
    with tempfile.TemporaryDirectory() as cache:
        corpus_file = Path(cache) / "corpus.jsonl"
        with corpus_file.open("w") as file:
            for document in generated.passages(NUM_DOCUMENTS):
                row = {"id": document.id, "title": document.title, "text": document.text}
                file.write(json.dumps(row) + "\n")
        kinds = itertools.product(("fts5", "tantivy"), (1, 2), NUM_CONNECTIONS)
        return [served(*kind, corpus_file, Path(cache)) for kind in kinds]


def millions() -> list[dict[str, Any]]:
    """Measure both backends on a million passages, each in a separate process."""
    return [in_a_child(backend, NUM_MANY_DOCUMENTS) for backend in ("fts5", "tantivy")]


def tables(results: dict[str, Any]) -> str:
    """Return the results as Markdown tables."""
    said = [f"Generated passages of {generated.PASSAGE_WORDS} words. What is measured: `speed.py`."]
    for part, measured in results.items():
        rows = measured["rows"]
        said.append(
            f"## {part}\n\n{measured['machine']}; load average {measured['load_average']} before and "
            f"{measured['load_average_after']} after (above 0 before: others used the cores); {measured['date']}, "
            f"commit {measured['commit']}.\n\n| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|"
        )
        said[-1] += "".join("\n| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows)
    return "\n\n".join(said) + "\n"


if __name__ == "__main__":
    main()
