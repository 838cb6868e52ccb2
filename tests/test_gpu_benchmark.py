"""The scripts for machines with a GPU run as a whole on a CPU, so that a lent one is not spent on their slips."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

FOLDER = Path(__file__).parents[1] / "benchmarks" / "gpu"
SCRIPT = FOLDER / "engine.py"


@pytest.mark.slow
def test_it_measures_all_its_parts(warm_run: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "engine.json"
    small = ["--device", "cpu", "--shapes", "tiny", "--batch", "1", "3", "--new-tokens", "8", "--copy-mb", "8"]
    overrides = ["num_steps=2", "engine.decode=fixed", "engine.dtype=bfloat16"]
    run = ["--recipe", "household-smoke", "--out", str(out), "--overrides", *overrides]
    warm_run(SCRIPT, *small, *run)
    result = json.loads(out.read_text())
    assert [(row["shape"], row["batch"]) for row in result["engine"]] == [("tiny", 1), ("tiny", 3)]
    assert all(row[name] > 0 for row in result["engine"] for name in ("fixed", "ragged", "bandwidth_limit"))
    assert len(result["run"]["success"]) == 2
    assert result["run"]["success_after"] is not None
    assert result["vllm"] == "vLLM is not installed here"


@pytest.mark.slow
def test_training_is_measured_in_all_its_ways(warm_run: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "train.json"
    warm_run(FOLDER / "train.py", "--smoke", "--out", out)
    result = json.loads(out.read_text())
    arms = {(row["weights"], row["layout"], row["precision"]) for row in result["steps"]}
    assert len(arms) == len(result["steps"]) == 8
    assert all(row["step_s"] > 0 and row["share_of_matmul"] > 0 for row in result["steps"])
    assert {row["layout"]: row["num_forwarded"] for row in result["steps"]} == {"rows": 8 * 32, "packed": 16 + 8 * 16}
    assert result["run"]["success_after"] is not None


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("benchmark_gpu_train", FOLDER / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_count_of_operations_is_that_of_torch(training: ModuleType) -> None:
    """Torch counts attention as if every token saw all of its row; half of that pays, and a diagonal."""
    num_tokens = 24
    model = training.build("tiny", torch.device("cpu")).float()
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        logits = model(input_ids=torch.randint(1, 512, (1, num_tokens)), use_cache=False).logits
        logits.sum().backward()
    sees_all = [[num_tokens] * num_tokens]
    assert training.num_operations("tiny", sees_all, num_tokens, is_lora=False) == counter.get_total_flops()


@pytest.mark.slow
def test_every_check_passes_on_a_cpu(warm_run: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    said = warm_run(FOLDER / "check.py", "--device", "cpu", "--out", out)
    found = json.loads(out.read_text())
    assert [len(check["rows"]) for check in found["checks"].values()] == [8, 3, 2, 1, 2, 1, 2, 3, 1, 2, 1, 6, 2, 1, 1]
    rows = [row for check in found["checks"].values() for row in check["rows"]]
    assert all(row["passed"] for row in rows)
    without = [row["name"] for row in rows if row["is_skipped"]]
    assert without[0].endswith("by Liger") and without[1:] == [
        "vLLM servers: weights by folder, LoRA, IPC and NCCL", "training with a vLLM server, by the printed command"
    ]  # fmt: skip
    assert said.count("PASS") == len(rows) - 3 and said.count("SKIP") == 3
    warm_run(FOLDER / "check.py", "--device", "cpu", "--only", "checkpoints", "--out", out)
    again = json.loads(out.read_text())
    assert again["checks"].keys() == found["checks"].keys()
    assert again["checks"]["attention"] == found["checks"]["attention"]
