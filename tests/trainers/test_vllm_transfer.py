"""Weights from GPU to GPU by vLLM's own transfers: the conversation with a server, and NCCL's calls against a library
of the same interface that writes down what it is asked. What needs a GPU is not run here."""

from __future__ import annotations

import asyncio
import base64
import pickle
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from testkit.fake_vllm import FACTS, STOP, TRANSFER_ROUTES, VOCAB_SIZE, FakeVllm, evidence_of
from torch import Tensor

from agentgym.engine import SamplingParams
from agentgym.errors import ConfigError, EngineError
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.engines.config import EngineConfig
from agentgym.trainers.engines.vllm.nccl import Communicator, Nccl
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import NO_VERSION
from agentgym.trainers.engines.vllm.server import VllmEngine
from agentgym.trainers.engines.vllm.transfer import IpcChannel, NcclChannel, TransferChannel, TransferSync, cuda_handle
from agentgym.trainers.models.model import plain_tensors
from agentgym.trainers.placement.build import build_engine
from agentgym.trainers.planning.servers import serve_command
from agentgym.trainers.recipes import load_recipe

T = TypeVar("T")
FULL_ROUND = list(TRANSFER_ROUTES)
LATER_ROUND = [route for route in FULL_ROUND if "engine" not in route]

LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { char internal[128]; } Id;
struct Comm { int num_ranks, rank; volatile int is_aborted; };
static FILE *out(void) { const char *v = getenv("NCCL_STAND_IN"); return fopen(v ? v : "/dev/null", "a"); }
static int told(const char *what) { const char *v = getenv("NCCL_STAND_IN_DOES"); return v && !strcmp(v, what); }
const char *ncclGetErrorString(int code) { return code == 3 ? "internal error" : "aborted"; }
int ncclGetVersion(int *version) { *version = 22809; return 0; }
int ncclGetUniqueId(Id *id) { for (int i = 0; i < 128; i++) id->internal[i] = i; return 0; }
int ncclCommInitRank(struct Comm **made, int num_ranks, Id id, int rank) {
    FILE *f = out();
    fprintf(f, "init %d of %d, id %d %d\n", rank, num_ranks, id.internal[1], id.internal[127]);
    fclose(f);
    while (told("hang while they meet")) usleep(1000);
    struct Comm *c = calloc(1, sizeof *c); c->num_ranks = num_ranks; c->rank = rank; *made = c; return 0;
}
int ncclAllReduce(void *s, void *r, size_t n, int type, int op, struct Comm *c, void *stream) {
    FILE *f = out(); fprintf(f, "reduce %zu of type %d by %d\n", n, type, op); fclose(f); return 0;
}
int ncclBroadcast(void *s, void *r, size_t n, int type, int root, struct Comm *c, void *stream) {
    if (told("fail")) return 3;
    while (told("hang") && !c->is_aborted) usleep(1000);
    if (c->is_aborted) return 4;
    float first; memcpy(&first, s, sizeof first);
    FILE *f = out(); fprintf(f, "broadcast %zu of type %d from %d: %g\n", n, type, root, first); fclose(f); return 0;
}
int ncclCommAbort(struct Comm *c) { c->is_aborted = 1; FILE *f = out(); fprintf(f, "abort\n"); fclose(f); return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "nccl.c").write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "libnccl.so", "nccl.c"], cwd=folder, check=True)
    return folder / "libnccl.so"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls.txt"
    monkeypatch.setenv("NCCL_STAND_IN", str(path))
    return path


class World:
    """One server, the trainer's weights and the engine between them."""

    def __init__(self, server: FakeVllm, channel: TransferChannel, *, are_kept: bool = False, **config: Any) -> None:
        self.server = server
        self.weights = {"w": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}
        sync = TransferSync(
            self.weights.items,
            channel,
            lambda ids, dtypes: evidence_of(server.number_to_come, ids, dtypes),
            VOCAB_SIZE,
            are_kept=are_kept,
        )
        values = {"health_interval_s": 0.05, "update_timeout_s": 20.0, **config}
        self.engine = VllmEngine(
            EngineConfig(kind="vllm", urls=(server.url,), **values), sync, FACTS, max_context_tokens=64
        )

    async def train(self, version: int, number: int) -> list[str]:
        """A step, and the weights sent; the routes that were posted to."""
        self.server.transfers.clear()
        self.server.number_to_come = number
        self.weights["w"] += 1
        await self.engine.update_weights(version)
        return [path for path, _ in self.server.transfers]

    async def first_token(self) -> int:
        """Which tells what the server computes with."""
        sampling = SamplingParams(max_new_tokens=8, stop_token_ids=(STOP,), seed=7)
        return (await self.engine.generate([5, 6, 7], sampling)).token_ids[0]


@asynccontextmanager
async def world(channel: TransferChannel, *, are_kept: bool = False, **config: Any) -> AsyncIterator[World]:
    server = await FakeVllm().start()
    made = World(server, channel, are_kept=are_kept, **config)
    try:
        yield made
    finally:
        await made.engine.close()
        await server.kill()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, timeout=60))


def ipc() -> IpcChannel:
    return IpcChannel("GPU-1", lambda tensor: ("GPU-1", (tuple(tensor.shape), float(tensor.flatten()[0]))))


def test_ipc_sends_handles_of_a_copy() -> None:
    async def scenario() -> None:
        async with world(ipc()) as w:
            assert await w.train(1, number=41) == FULL_ROUND
            posted = dict(w.server.transfers)
            assert posted["/init_weight_transfer_engine"] == {"init_info": {}}
            info = posted["/update_weights"]["update_info"]
            handles = pickle.loads(base64.b64decode(info.pop("ipc_handles_pickled")))
            assert info == {"names": ["w", "b"], "dtype_names": ["float32", "bfloat16"], "shapes": [[2, 3], [4]]}
            assert handles == [{"GPU-1": ((2, 3), 2.0)}, {"GPU-1": ((4,), 0.0)}]
            completion_token = await w.first_token()
            assert (completion_token, w.server.held["version"]) == (41, 1)
            assert await w.train(2, number=42) == LATER_ROUND  # the server did not start anew
            assert await w.first_token() == 42

    run(scenario())


def test_a_restarted_server_gets_what_was_published_not_what_was_trained_since() -> None:
    async def scenario() -> None:
        async with world(ipc(), request_timeout_s=20.0) as w:
            await w.train(1, number=41)
            await w.server.kill()
            w.weights["w"] += 100
            w.server.transfers.clear()
            while not w.engine._pool.reasons():
                await asyncio.sleep(0.01)
            await w.server.start()
            while w.server.held["version"] != 1:
                await asyncio.sleep(0.01)
            posted = dict(w.server.transfers)
            assert [path for path, _ in w.server.transfers if path != "/resume"] == FULL_ROUND[:-1]
            handles = pickle.loads(base64.b64decode(posted["/update_weights"]["update_info"]["ipc_handles_pickled"]))
            assert handles[0] == {"GPU-1": ((2, 3), 2.0)}

    run(scenario())


def test_a_server_that_fails_in_the_middle_holds_no_version_and_is_resumed() -> None:
    async def scenario() -> None:
        async with world(ipc(), update_timeout_s=3.0) as w:
            await w.train(1, number=41)
            w.server.faults["/update_weights"] = 500
            with pytest.raises(EngineError, match=r"no vLLM server took the weights of version 2 .*500"):
                await w.train(2, number=42)
            assert w.server.held["version"] == NO_VERSION
            assert "/resume" in dict(w.server.transfers)
            del w.server.faults["/update_weights"]
            while (await w.first_token()) != 42:
                await asyncio.sleep(0.01)
            assert w.server.held["version"] == 2

    run(scenario())


def test_nccl_meets_and_broadcasts(library: Path, calls: Path) -> None:
    async def scenario() -> None:
        async with world(NcclChannel(Nccl(str(library)))) as w:
            assert await w.train(1, number=41) == FULL_ROUND
            info = dict(w.server.transfers)["/init_weight_transfer_engine"]["init_info"]
            assert base64.b64decode(info.pop("nccl_unique_id_b64")) == bytes(range(128))
            assert info == {"rank_offset": 1, "world_size": 3}
            assert await w.first_token() == 41
            await w.train(2, number=42)

    run(scenario())
    sent = ["broadcast 6 of type 7 from 0: 2", "broadcast 4 of type 9 from 0: 0"]
    assert calls.read_text().splitlines() == [
        "init 0 of 3, id 1 127",
        "reduce 1 of type 7 by 0",
        *sent,
        sent[0].replace(": 2", ": 3"),
        sent[1],
        "abort",
    ]


@pytest.mark.parametrize("are_kept", [False, True])
def test_weights_are_sent_in_the_servers_dtype_each_rounded_when_its_turn_comes(
    are_kept: bool, library: Path, calls: Path
) -> None:
    async def scenario() -> None:
        async with world(NcclChannel(Nccl(str(library))), are_kept=are_kept) as w:
            w.server.facts["dtype"] = "bfloat16"
            await w.engine.connect()  # by which the dtype is known
            await w.train(1, number=41)
            info = dict(w.server.transfers)["/update_weights"]["update_info"]
            assert info["dtype_names"] == ["bfloat16", "bfloat16"]
            kept = dict(w.engine._servers._sync._kept)  # type: ignore[attr-defined]
            is_same = kept["w"].data_ptr() == w.weights["w"].data_ptr()
            assert (is_same, kept["w"].dtype) == (are_kept, torch.float32 if are_kept else torch.bfloat16)

    run(scenario())
    assert "broadcast 6 of type 9 from 0" in calls.read_text()


def test_nccl_with_a_server_that_is_too_old_is_refused(library: Path, calls: Path) -> None:
    async def scenario() -> None:
        async with world(NcclChannel(Nccl(str(library))), update_timeout_s=3.0) as w:
            w.server.facts["vllm_version"] = "0.26.0"
            with pytest.raises(EngineError, match=r"is vLLM 0\.26\.0, and this needs 0\.32 to 0\.33"):
                await w.train(1, number=41)

    run(scenario())
    assert not calls.exists()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"nccl": 23004}, r"has NCCL 2\.30\.4 and the trainer 2\.28\.9, and NCCL connects equal versions only"),
        (
            {"nccl": None, "reason": "AttributeError: undefined symbol: ncclCommSuspend"},
            r"cannot use its NCCL: AttributeError: undefined symbol: ncclCommSuspend; engine\.weight_sync=folder",
        ),
    ],
)
def test_nccl_that_cannot_connect_is_refused_at_the_start(
    found: dict[str, Any], said: str, library: Path, calls: Path
) -> None:
    async def scenario() -> None:
        async with world(NcclChannel(Nccl(str(library)))) as w:
            w.server.nccl = found
            with pytest.raises(ConfigError, match=said):
                await w.engine.connect()

    run(scenario())
    assert not calls.exists()


@pytest.mark.parametrize(
    ("does", "reason"), [("hang", "NCCL did not end within 0.5 s"), ("fail", "ncclBroadcast failed: internal error")]
)
def test_nccl_that_does_not_work_waits_for_nobody(
    library: Path, calls: Path, monkeypatch: pytest.MonkeyPatch, does: str, reason: str
) -> None:
    monkeypatch.setenv("NCCL_STAND_IN_DOES", does)

    async def scenario() -> None:
        async with world(NcclChannel(Nccl(str(library))), update_timeout_s=0.5) as w:
            with pytest.raises(EngineError, match="no vLLM server took the weights"):
                await w.train(1, number=41)
            while reason not in w.engine._pool.reasons():
                await asyncio.sleep(0.01)
            assert w.server.held["version"] == NO_VERSION

    run(scenario())
    assert "abort" in calls.read_text()


def test_a_server_that_never_comes_to_meet_holds_nothing_up(
    library: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_STAND_IN_DOES", "hang while they meet")

    async def scenario() -> None:
        async with world(NcclChannel(Nccl(str(library))), update_timeout_s=0.5) as w:
            with pytest.raises(EngineError, match="no vLLM server took the weights"):
                await w.train(1, number=41)
            while "NCCL did not end within 0.5 s" not in w.engine._pool.reasons():
                await asyncio.sleep(0.01)

    run(scenario())
    assert "init 0 of 3" in calls.read_text()
    monkeypatch.delenv("NCCL_STAND_IN_DOES")
    while "abort" not in calls.read_text():  # else it would be in the calls of the next test
        time.sleep(0.01)


def test_a_communicator_that_was_given_up_is_not_used(library: Path, calls: Path) -> None:
    communicator = Communicator(Nccl(str(library)), bytes(128), num_ranks=2, rank=0)
    communicator.abort()
    with pytest.raises(EngineError, match="given up"):
        communicator.meet()
    with pytest.raises(EngineError, match="given up"):
        communicator.broadcast([torch.zeros(1)])
    assert calls.read_text().splitlines() == ["init 0 of 2, id 0 0", "abort"]


def test_without_the_library_or_a_gpu_it_says_so() -> None:
    with pytest.raises(EngineError, match=r"engine.weight_sync=nccl needs NCCL"):
        Nccl("libnccl-of-nobody.so")
    with pytest.raises(EngineError, match="the trainer's model is on the CPU"):
        cuda_handle(torch.zeros(1))


def test_tensors_that_share_memory_are_sent_once() -> None:
    shared = torch.nn.Linear(2, 2, bias=False)
    model: Any = torch.nn.ModuleDict({"embedding": shared, "head": shared, "other": torch.nn.Linear(2, 1)})
    sent: dict[str, Tensor] = dict(plain_tensors(model))
    assert list(sent) == ["embedding.weight", "other.weight", "other.bias"]


@pytest.mark.parametrize("way", ["ipc", "nccl"])
def test_a_run_on_a_cpu_is_refused_and_the_command_names_the_way(way: str, tmp_path: Path) -> None:
    config = apply_overrides(
        load_recipe("tiny"), ["engine.kind=vllm", 'engine.urls=["http://127.0.0.1:9"]', f"engine.weight_sync={way}"]
    )
    assert f"--weight-transfer {way}" in serve_command("folder", config.engine.urls[0], config)

    class OnCpu:
        device = torch.device("cpu")

        class config:
            @staticmethod
            def get_text_config() -> Any:
                return FACTS

    model: Any = OnCpu()
    with pytest.raises(ConfigError, match=f"engine.weight_sync={way} sends weights from GPU to GPU.*is on the cpu"):
        build_engine(config, model, tmp_path)
