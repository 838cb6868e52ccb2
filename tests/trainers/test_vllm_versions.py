"""What is sent to vLLM against the fields and routes of every vLLM at hand.

An installed one (``AGENTGYM_VLLM_PYTHON``) and unpacked wheels (``AGENTGYM_VLLM_WHEELS``, folders that hold ``vllm/``,
separated by colons) are read as text: importing vLLM takes its whole environment.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym.engine import SamplingParams
from agentgym.errors import UsageError
from agentgym.trainers.engines.vllm import launch
from agentgym.trainers.engines.vllm.launch import find_vllm
from agentgym.trainers.engines.vllm.transfer import IPC_INIT_INFO, description_of, ipc_update_info, nccl_init_info
from agentgym.trainers.engines.vllm.versions import NCCL_SINCE, check_version
from agentgym.trainers.engines.vllm.wire import completion_body, score_body

TENSORS = [("w", torch.zeros(2, 3))]


def packages() -> Iterator[Path]:
    python = os.environ.get("AGENTGYM_VLLM_PYTHON", "")
    environment = Path(python).parent.parent if python.endswith(("python", "python3")) else Path(python)
    if python:
        yield from environment.glob("lib/python3*/site-packages/vllm")
    for folder in filter(None, os.environ.get("AGENTGYM_VLLM_WHEELS", "").split(":")):
        yield Path(folder) / "vllm"


INSTALLED = list(packages())


def needs_vllm(test: Any) -> Any:
    reason = "needs AGENTGYM_VLLM_PYTHON or AGENTGYM_VLLM_WHEELS"
    return pytest.mark.vllm(pytest.mark.skipif(not INSTALLED, reason=reason)(test))


def release(package: Path) -> tuple[int, int]:
    names: dict[str, Any] = {}
    exec((package / "_version.py").read_text(encoding="utf-8"), names)
    major, minor = names["version_tuple"][:2]
    return major, minor


def fields_of(package: Path, path: str, name: str) -> tuple[set[str], set[str]]:
    """Names of a class's fields, its bases in the same file included, and of those without a default."""
    tree = ast.parse((package / path).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found, required = set(), set()
    for base in [*(b.id for b in classes[name].bases if isinstance(b, ast.Name) and b.id in classes), name]:
        for node in classes[base].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
                if node.value is None:
                    required.add(node.target.id)
    return found, required


def fits(body: Mapping[str, object], package: Path, path: str, name: str) -> None:
    found, required = fields_of(package, path, name)
    assert set(body) <= found, f"{name} does not know {set(body) - found}"
    assert required <= set(body), f"{name} needs {required - set(body)}"


@needs_vllm
@pytest.mark.parametrize("package", INSTALLED, ids=str)
def test_bodies_have_the_fields_of_every_vllm(package: Path) -> None:
    completion = "entrypoints/openai/completion/protocol.py"
    fits(completion_body("m", [1], SamplingParams(seed=3), 4, "salt", "name"), package, completion, "CompletionRequest")
    fits(score_body("m", [1, 2], "salt"), package, completion, "CompletionRequest")
    ipc, nccl = (f"distributed/weight_transfer/{name}.py" for name in ("ipc_engine", "nccl_engine"))
    fits(IPC_INIT_INFO, package, ipc, "IPCWeightTransferInitInfo")
    fits(ipc_update_info(TENSORS, [{"GPU-1": ()}]), package, ipc, "IPCWeightTransferUpdateInfo")
    fits(description_of(TENSORS), package, nccl, "NCCLWeightTransferUpdateInfo")
    if release(package) >= NCCL_SINCE:
        common = "distributed/weight_transfer/nccl_common.py"
        fits(nccl_init_info(bytes(128), 2), package, common, "NCCLWeightTransferInitInfo")


@needs_vllm
@pytest.mark.parametrize("package", INSTALLED, ids=str)
def test_workers_take_unpacked_tensors_where_nothing_is_said(package: Path) -> None:
    for name in ("ipc_engine", "nccl_engine", "nccl_common"):
        tree = ast.parse((package / "distributed" / "weight_transfer" / f"{name}.py").read_text(encoding="utf-8"))
        workers = [n for n in tree.body if isinstance(n, ast.ClassDef) and "WeightTransfer" in n.name]
        fields = [node for worker in workers for node in worker.body if isinstance(node, ast.AnnAssign)]
        packed = [ast.unparse(node) for node in fields if ast.unparse(node.target) == "packed"]
        assert set(packed) <= {"packed: bool=False", "packed: bool = False"}


@needs_vllm
@pytest.mark.parametrize("package", INSTALLED, ids=str)
def test_routes_are_those_of_every_vllm(package: Path) -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (package / "entrypoints").rglob("*.py"))
    for method, route in (
        *(("post", name) for name in ("/pause", "/resume", "/collective_rpc", "/sleep", "/wake_up")),
        *(("post", name) for name in ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights")),
        *(("post", name) for name in ("/finish_weight_update", "/v1/completions")),
        *(("get", name) for name in ("/get_world_size", "/v1/models", "/health")),
        *(("post", name) for name in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")),
    ):
        assert re.search(rf'\.{method}\(\s*"{route}"', text), route


@needs_vllm
@pytest.mark.parametrize("package", INSTALLED, ids=str)
def test_workers_know_the_version_of_their_nccl(package: Path) -> None:
    tree = ast.parse((package / "distributed/device_communicators/pynccl_wrapper.py").read_text(encoding="utf-8"))
    library = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "NCCLLibrary")
    methods = {node.name: node for node in library.body if isinstance(node, ast.FunctionDef)}
    arguments = methods["__init__"].args
    assert "ncclGetRawVersion" in methods and len(arguments.args) == len(arguments.defaults) + 1


@needs_vllm
@pytest.mark.parametrize("package", INSTALLED, ids=str)
def test_requests_can_be_kept_at_every_vllm(package: Path) -> None:
    """It can pause with them, and says of each how far it is, by a name that begins with ours."""
    assert 'PauseMode = Literal["abort", "wait", "keep"]' in (package / "v1/engine/__init__.py").read_text("utf-8")
    serving = (package / "entrypoints/openai/completion/serving.py").read_text("utf-8")
    assert 'f"cmpl-{self._base_request_id(raw_request, request.request_id)}"' in serving
    assert 'f"{request_id}-{i}"' in serving
    assert "self.requests: dict[str, CachedRequestState]" in (package / "v1/worker/gpu_model_runner.py").read_text()
    _, needed = fields_of(package, "v1/worker/gpu_input_batch.py", "CachedRequestState")
    assert "output_token_ids" in needed
    states = (package / "v1/worker/gpu/states.py").read_text()
    assert all(f"self.{name}" in states for name in ("req_id_to_index", "prompt_len", "total_len"))


@needs_vllm
@pytest.mark.parametrize("package", INSTALLED, ids=str)
def test_every_vllm_at_hand_is_a_supported_one(package: Path) -> None:
    check_version(".".join(map(str, release(package))), str(package))


@pytest.mark.parametrize("version", ["0.25.3", "0.34.0", "1.0", "dev", ""])
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"this needs 0\.26 to 0\.33: pip install 'vllm>=0\.26,<0\.34'"):
        check_version(version, "the server")
    if version:
        monkeypatch.setattr(launch, "_distributions", lambda python: {"vllm": version})
        with pytest.raises(UsageError, match=f"is vLLM {version}, and this needs"):
            find_vllm("/somewhere/bin/python")
