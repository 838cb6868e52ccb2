"""A fake vLLM server in this process, which can misbehave in many ways.

It copies the answers of vLLM 0.32. Its first sampled token is a number stored in its weights, so that a test sees with
which weights a completion was sampled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentgym.trainers.engines.vllm.client import NAME_PREFIX, ModelFacts
from agentgym.trainers.engines.vllm.in_flight import PAUSE
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import NO_VERSION, checksum_of
from agentgym.trainers.engines.vllm.proof import Evidence

VOCAB_SIZE = 100
STOP = 2
FACTS = ModelFacts(model_type="qwen3", hidden_size=8, num_hidden_layers=1, vocab_size=VOCAB_SIZE)
UNTRAINED = 99
"""First token sampled by a server with the weights it started with."""
COMPLETIONS = "/v1/completions"
TRANSFER_ROUTES = (
    "/pause?mode=wait",
    "/shutdown_weight_transfer_engine",
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/resume",
)


def evidence_of(number: int, ids: Sequence[int], dtypes: Collection[str], gap: float = 0.0) -> Evidence:
    """Return the evidence that a server with this number as its weights must show."""
    logprobs = tuple(-token / 10 - gap for token in ids[1:])
    return Evidence(sums={dtype: {"w": number} for dtype in dtypes}, logprobs=dict.fromkeys(dtypes, logprobs))


def write_weights(folder: Path, number: int) -> None:
    """Write a file that takes the place of a model's weights and contains a number."""
    (folder / "model.safetensors").write_text(str(number))


class FakeVllm:
    """One fake server.

    Attributes:
        faults: by path, what to do instead of answering: ``silent`` (never answer), ``slow`` (answer after a second),
            ``drop`` (close the connection in the middle), a number (that status), bytes (that body), or a function
            that changes the answer.
        requests: bodies of the completions asked for.
    """

    def __init__(self, port: int = 0, **facts: Any) -> None:
        self.host, self.port = "127.0.0.1", port
        self.faults: dict[str, Any] = {}
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.max_model_len = 512
        self.delay_s = 0.0
        self.token_delay_s = 0.0
        """Delay per token in seconds; if set, each token is the number of the weights in place at that moment."""
        self.tells_progress = True
        self.facts = {**{name: getattr(FACTS, name) for name in FACTS.__dataclass_fields__}, **facts}
        self.facts.setdefault("logprobs_mode", "processed_logprobs")
        self.facts.setdefault("vllm_version", "0.32.0")
        self.facts.setdefault("dtype", "float32")
        self.facts.setdefault("can_sleep", True)
        self.facts.setdefault("takes", ["lora", "ipc", "nccl"])
        self.in_place: int | None = None
        """If set, the parameters are those of this number, whatever weights are loaded."""
        self.is_packed = False
        """True: the parameters cannot be read, as on a CPU."""
        self.num_starts = 0
        self.fixed_name = ""
        """If set, the model's name is the same after each start; ``agentgym serve-model`` draws a new one."""
        self.in_flight = 0
        self.number_to_come = UNTRAINED
        """Number of the weights that the next transfer brings; the server cannot read real ones."""
        self.nccl: dict[str, Any] = {"nccl": 22809}
        """What its workers say of their NCCL library."""
        self.gpu = "GPU-1"
        """Ids of its workers' GPUs, with spaces between them."""
        self.transfers: list[tuple[str, Any]] = []
        """Requests to the routes of vLLM's weight transfer, in order."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def name(self) -> str:
        return self.fixed_name or f"{NAME_PREFIX}{self.num_starts}"

    async def start(self) -> FakeVllm:
        """Start listening, with the weights and the name of a new process."""
        self.num_starts += 1
        self.held = {"version": NO_VERSION, "checksum": ""}
        self.number = UNTRAINED
        self.is_asleep = False
        self.adapters: dict[str, int] = {}
        self.going = asyncio.Event()
        self.going.set()
        self.progress: dict[str, int] = {}
        """Number of tokens of each running request."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def kill(self) -> None:
        """Close the port and reset every connection, as ``kill -9`` does."""
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split(" ", 2)
                sizes = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
                body = await reader.readexactly(int(sizes[0].split(":")[1])) if sizes else b""
                if not await self._answer(method, target, json.loads(body or b"null"), writer):
                    break
                if "\r\nconnection: close" in head.lower():
                    break
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, method: str, path: str, body: Any, writer: asyncio.StreamWriter) -> bool:
        self.paths.append(path)
        fault = self.faults.get(path)
        if path == COMPLETIONS:
            self.requests.append(body)
            self.in_flight += 1
        try:
            if fault == "silent":
                await asyncio.sleep(3600)
            if fault == "slow":
                await asyncio.sleep(1.0)
            elif path == COMPLETIONS and self.delay_s:
                await asyncio.sleep(self.delay_s)
            if fault == "drop":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
                await writer.drain()
                return False
            status, answer = await self._route(method, path, body)
        finally:
            self.in_flight -= path == COMPLETIONS
        if isinstance(fault, int):
            status, answer = fault, {"error": {"message": "told to fail"}}
        elif callable(fault):
            answer = fault(answer)
        content = fault if isinstance(fault, bytes) else json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
        return True

    async def _route(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if (method, path) in (("GET", "/health"), ("GET", "/metrics")):
            return 200, None
        if (method, path) == ("GET", "/v1/models"):
            base = {"id": self.name, "parent": None, "max_model_len": self.max_model_len}
            return 200, {"data": [base, *({"id": name, "parent": self.name} for name in self.adapters)]}
        if (method, path) == ("POST", "/collective_rpc"):
            return self._rpc(body["method"], body["kwargs"])
        if (method, path) == ("POST", "/v1/load_lora_adapter"):
            self.adapters[body["lora_name"]] = int(next(Path(body["lora_path"]).glob("*.safetensors")).read_text())
            return 200, None
        if (method, path) == ("POST", "/v1/unload_lora_adapter"):
            del self.adapters[body["lora_name"]]
            return 200, None
        if (method, path) == ("POST", COMPLETIONS):
            return await self._complete(body)
        return self._transfer(path, body)

    def _transfer(self, path: str, body: Any) -> tuple[int, Any]:
        if path in ("/sleep?level=1&mode=wait", "/wake_up"):
            self.is_asleep = path != "/wake_up"
            return 200, None
        if path == "/get_world_size":
            return 200, {"world_size": 2}
        if path not in (PAUSE, *TRANSFER_ROUTES):
            return 404, {"error": {"message": "no such route"}}
        if path == "/resume" and self.going.is_set():
            return 200, {"status": "resumed"}
        self.transfers.append((path, body))
        if path.startswith("/pause"):
            self.going.clear()
        if path == "/resume":
            self.going.set()
        if path == "/update_weights":
            self.number = self.number_to_come
        return 200, {"message": "done"}

    def _rpc(self, method: str, arguments: Any) -> tuple[int, Any]:
        if self.is_asleep:
            return 500, {"error": {"message": "asked while asleep"}}
        if method == "agentgym_sums":
            number = self.number if self.in_place is None else self.in_place
            value = None if self.is_packed else f"{number:x}"
            return 200, {"results": [{"dtype": self.facts["dtype"], "parameters": {"w": (["w"], value)}}]}
        told: dict[str, Any] = {
            "agentgym_in_flight": {"tokens": dict(self.progress) if self.tells_progress else None},
            "agentgym_nccl": self.nccl,
            "agentgym_held": {**self.held, **self.facts},
        }
        if method == "agentgym_gpu":
            return 200, {"results": [{"gpu": gpu} for gpu in self.gpu.split()]}
        if method in told:
            return 200, {"results": [told[method]]}
        if method in ("agentgym_forget", "agentgym_received"):
            self.held = arguments or {"version": NO_VERSION, "checksum": ""}
            return 200, {"results": [{**self.held, **self.facts}]}
        paths = sorted(Path(arguments["folder"]).glob("*.safetensors"))
        found = checksum_of(paths)
        if method == "agentgym_checksum":
            return 200, {"results": [{"checksum": found}]}
        assert method == "agentgym_load"
        if found != arguments["checksum"]:
            return 200, {"results": [{**self.held, "error": "other files"}]}
        self.held = {"version": arguments["version"], "checksum": found}
        self._take(paths[0])
        return 200, {"results": [{**self.held, **self.facts}]}

    def _take(self, path: Path) -> None:
        self.number = int(path.read_text())

    async def _complete(self, body: Any) -> tuple[int, Any]:
        assert not self.is_asleep
        if body["model"] not in (self.name, *self.adapters):
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        number = self.adapters.get(body["model"], self.number)
        prompt = body["prompt"]
        if max(prompt) >= VOCAB_SIZE:
            return 400, {"error": {"message": "Token id out of vocabulary"}}
        wanted = [number, 10 + body.get("seed", 0) % 50, *body.get("stop_token_ids", [])[:1]]
        tokens = wanted[: body["max_tokens"]]
        stopped = len(tokens) == len(wanted) and bool(body.get("stop_token_ids"))
        if self.token_delay_s and "prompt_logprobs" not in body:
            tokens, stopped = await self._sample(f"cmpl-{body['request_id']}-0-abc", body["max_tokens"]), False
        elif not stopped:
            tokens += [11] * (body["max_tokens"] - len(tokens))
        choice = {
            "token_ids": tokens,
            "prompt_token_ids": prompt,
            "finish_reason": "stop" if stopped else "length",
            "logprobs": {"token_logprobs": [-0.5 - i for i in range(len(tokens))]},
        }
        if "prompt_logprobs" in body:
            later = [{str(token): {"logprob": -token / 10}} for token in prompt[1:]]
            choice["prompt_logprobs"] = [None, *later]
        return 200, {"choices": [choice]}

    async def _sample(self, name: str, num_tokens: int) -> list[int]:
        tokens: list[int] = []
        try:
            while len(tokens) < num_tokens:
                await self.going.wait()
                self.progress[name] = len(tokens)
                await asyncio.sleep(self.token_delay_s)
                await self.going.wait()
                tokens.append(self.number)
            return tokens
        finally:
            self.progress.pop(name, None)
