"""The proof that a server has the trainer's weights in place: sums of bits, through fusing, sharding and rounding."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from testkit.ranked_update import small_model
from torch import Tensor

from agentgym.trainers.engines.facts import witness
from agentgym.trainers.engines.vllm.plugin.agentgym_vllm import AgentGymWeights, bit_sum
from agentgym.trainers.engines.vllm.proof import Evidence, prove, rounded_to, weight_sums
from agentgym.trainers.engines.vllm.wire import ServerFaultError
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora, plain_tensors, save_weights

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


class Worker(AgentGymWeights):
    """One worker of a server: its rank's shard of a model, laid out as vLLM lays it out."""

    def __init__(self, tensors: dict[str, Tensor], dtype: torch.dtype, rank: int = 0, num_ranks: int = 1) -> None:
        self.parameters = {name: value.to(dtype).clone() for name, value in shard(tensors, rank, num_ranks).items()}
        model = SimpleNamespace(named_parameters=self.parameters.items, packed_modules_mapping=FUSED)
        config = SimpleNamespace(dtype=dtype)
        self.model_runner = SimpleNamespace(get_model=lambda: model, model_config=config)


def shard(tensors: dict[str, Tensor], rank: int, num_ranks: int) -> dict[str, Tensor]:
    """Fused and cut: rows of most matrices, columns of output and down projections, whole norms."""
    made: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        head, _, last = name.rpartition(".")
        owner, _, module = head.rpartition(".")
        fused = next((whole for whole, parts in FUSED.items() if module in parts), "")
        if fused and module == FUSED[fused][0]:
            parts = [tensors[f"{owner}.{part}.{last}"] for part in FUSED[fused]]
            copies = [num_ranks if part in ("k_proj", "v_proj") else 1 for part in FUSED[fused]]  # one key head
            cut = [p.chunk(num_ranks // n)[rank // n] if p.ndim else p for p, n in zip(parts, copies, strict=True)]
            made[f"{owner}.{fused}.{last}"] = torch.cat(cut)
        elif not fused and module in ("o_proj", "down_proj"):
            made[name] = tensor.chunk(num_ranks, dim=1)[rank]
        elif module == "embed_tokens":  # with rows of zeros up to a round number
            rows = tensor.chunk(num_ranks)[rank]
            made[name] = torch.cat([rows, torch.zeros(5, rows.shape[1])])
        elif not fused:
            made[name] = tensor
    return made


class Client:
    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    async def rpc(self, method: str, arguments: object, timeout_s: float) -> list[Any]:
        assert method == "agentgym_sums"
        return [worker.agentgym_sums() for worker in self.workers]


def check(workers: Sequence[Worker], evidence: Evidence) -> tuple[str, int]:
    return asyncio.run(prove(Client(workers), evidence, 1.0))  # type: ignore[arg-type]


def tensors_of(model: Any) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in plain_tensors(model)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_fused_sharded_rounded_model_is_the_trainers(dtype: torch.dtype, num_ranks: int) -> None:
    model = small_model()
    evidence = witness(model)([1, 2, 3], ["float32", "bfloat16", "float16"])
    workers = [Worker(tensors_of(model), dtype, rank, num_ranks) for rank in range(num_ranks)]
    assert check(workers, evidence) == (str(dtype).removeprefix("torch."), 0)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.qkv_proj.weight", "model.norm.weight"])
def test_one_number_that_differs_in_its_last_bit_is_found(name: str) -> None:
    model = small_model()
    evidence = witness(model)([1, 2], ["bfloat16"])
    workers = [Worker(tensors_of(model), torch.bfloat16, rank, 2) for rank in range(2)]
    place = workers[1].parameters[name].view(torch.int16).flatten()
    place[3] += 1
    with pytest.raises(ServerFaultError, match=f"1 of its .* parameters are not the trainer's, .*: {name}"):
        check(workers, evidence)


def test_a_small_update_that_is_missing_is_found() -> None:
    """One step of 1e-6 changes a few hundred of the numbers in bfloat16, which no score shows."""
    model = small_model()
    old = Worker(tensors_of(model), torch.bfloat16)
    before = witness(model)([1, 2, 3], ["bfloat16"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-6 * torch.sign(parameter))
    after = witness(model)([1, 2, 3], ["bfloat16"])
    assert after.logprobs["bfloat16"] == pytest.approx(before.logprobs["bfloat16"], abs=0.1)
    with pytest.raises(ServerFaultError, match="are not the trainer's"):
        check([old], after)
    assert check([Worker(tensors_of(model), torch.bfloat16)], after) == ("bfloat16", 0)


def test_parameters_out_of_sight_are_counted() -> None:
    model = small_model()
    worker = Worker(tensors_of(model), torch.float32)
    worker.parameters["model.layers.0.mlp.gate_up_proj.weight"] = torch.empty(0)
    assert check([worker], witness(model)([1, 2], ["float32"])) == ("float32", 1)


def test_under_swapped_adapters_the_base_is_proven() -> None:
    model = small_model()
    worker = Worker(tensors_of(model), torch.bfloat16)
    wrapped = {name.replace("_proj.", "_proj.base_layer."): value for name, value in worker.parameters.items()}
    worker.model_runner.get_model().named_parameters = wrapped.items
    adapted = add_lora(model, LoraSettings(rank=4), 0)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_" in name:
                parameter.add_(0.1)
    assert check([worker], witness(adapted, has_adapters=True)([1, 2], ["bfloat16"])) == ("bfloat16", 0)


def test_sums_tell_bits_not_order() -> None:
    values = torch.tensor([1.0, -2.0, 0.5, 3.0])
    assert bit_sum(values) == bit_sum(values.flip(0)) == bit_sum(torch.cat([values, torch.zeros(3)]))
    assert bit_sum(values) != bit_sum(torch.tensor([1.0, -2.0, 0.5, -3.0]))
    assert bit_sum(torch.tensor([1.0, 4.0])) != bit_sum(torch.tensor([2.0, 2.0]))
    assert (bit_sum(values) + bit_sum(values)) % 2**64 == bit_sum(torch.stack([values, values]))
    assert weight_sums([("w", values)], ["bfloat16"]) == {"bfloat16": {"w": bit_sum(values.bfloat16())}}


def test_sums_are_of_parts_of_any_size_and_change_no_number() -> None:
    values = torch.arange(300_001, dtype=torch.float64)
    before = values.clone()
    assert bit_sum(values) == (bit_sum(values[:70_000]) + bit_sum(values[70_000:])) % 2**64
    assert torch.equal(values, before)


@pytest.mark.parametrize(
    ("dtypes", "written"),
    [(["bfloat16"], torch.bfloat16), (["float32"], torch.float32), (["float32", "bfloat16"], torch.float32)],
)
def test_files_are_in_the_dtype_of_the_servers(dtypes: list[str], written: torch.dtype, tmp_path: Path) -> None:
    model = add_lora(small_model(), LoraSettings(rank=4), 0)
    save_weights(model, tmp_path, dtypes)
    found = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {written}
    assert weight_sums(found.items(), dtypes) == weight_sums(plain_tensors(model), dtypes)


def test_a_model_that_computes_in_bfloat16_is_left_as_it_was() -> None:
    model = small_model()
    ids = torch.arange(1, 30)[None]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad(), rounded_to(model, torch.bfloat16):
        rounded = model(ids).logits
    assert rounded.dtype == torch.bfloat16
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    whole = small_model()
    for parameter in whole.parameters():  # the rotary embedding's frequencies stay as they are
        parameter.data = parameter.data.to(torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(rounded, whole(ids).logits, atol=0, rtol=0)
