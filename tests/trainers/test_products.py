"""Matrix products by oneDNN: their values and gradients are torch's, and only large float32 ones on a CPU use it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from testkit.tiny_models import tiny_model
from torch import nn
from torch.utils.checkpoint import checkpoint

from agentgym.trainers.models import processor, products
from agentgym.trainers.models.products import OneDnnLinear, packed, padded_size, product, use_faster_products


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every linear layer of a model multiply by oneDNN, and record the rows of each product."""
    rows: list[int] = []

    multiply = products._multiply

    def recorded(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows.append(len(x))
        return multiply(x, matrix, bias)

    monkeypatch.setattr(products, "has_faster_products", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)
    monkeypatch.setattr(products, "_multiply", recorded)
    return rows


def layers(num_in: int = 24, num_out: int = 40, *, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """Return a layer and its copy that multiplies by oneDNN."""
    torch.manual_seed(0)
    plain = nn.Linear(num_in, num_out, bias=bias)
    fast = copy.deepcopy(plain)
    fast.__class__ = OneDnnLinear
    return plain, fast


@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 40])
@pytest.mark.parametrize("is_packed", [False, True])
def test_the_product_is_torchs(num_rows: int, is_packed: bool) -> None:
    torch.manual_seed(num_rows)
    x, matrix, bias = torch.randn(num_rows, 48), torch.randn(80, 48), torch.randn(80)
    held = packed(matrix) if is_packed else matrix
    torch.testing.assert_close(product(x, held), x @ matrix.t())
    torch.testing.assert_close(product(x, held, bias), x @ matrix.t() + bias)


def test_few_numbers_of_rows_are_multiplied() -> None:
    sizes = {num_rows: padded_size(num_rows) for num_rows in range(1, 8193)}
    assert all(num_rows <= size <= 1.25 * num_rows + 1 for num_rows, size in sizes.items())
    assert all(size <= 1.13 * num_rows for num_rows, size in sizes.items() if num_rows > 512)
    assert len({*sizes.values()}) == 64
    assert all(padded_size(size) == size for size in sizes.values())


def test_other_numbers_of_rows_are_padded(faster: list[int]) -> None:
    plain, fast = layers(24, 48, bias=True)
    x = torch.randn(3, 11, 24, requires_grad=True)
    for layer in (plain, fast):
        layer(x).square().sum().backward()
    assert faster == [40, 40, 48], "of values, gradients of inputs, and gradients of the matrix"
    assert plain.weight.grad is not None and fast.weight.grad is not None
    torch.testing.assert_close(plain.weight.grad, fast.weight.grad)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(7, 24), (2, 5, 24), (2, 3, 4, 24)])
def test_values_and_gradients_are_torchs(shape: tuple[int, ...], bias: bool, faster: list[int]) -> None:
    plain, fast = layers(bias=bias)
    x, sent = torch.randn(shape), torch.randn(*shape[:-1], 40)
    made = []
    for layer in (plain, fast):
        read = x.clone().requires_grad_()
        out = layer(read)
        out.backward(sent)
        gradients = [parameter.grad for parameter in layer.parameters()]
        made.append([out.detach(), read.grad, *gradients])
    torch.testing.assert_close(made[0], made[1])
    assert len(faster) == 3  # values, and the gradients of input and matrix


def test_what_is_not_contiguous_is_multiplied_alike(faster: list[int]) -> None:
    plain, fast = layers(bias=False)
    x = torch.randn(24, 6).t()
    sent = torch.randn(40, 6).t()
    for layer in (plain, fast):
        layer(x).backward(sent)
    assert plain.weight.grad is not None and fast.weight.grad is not None
    torch.testing.assert_close(plain.weight.grad, fast.weight.grad)
    assert faster


def test_a_frozen_matrix_gets_no_gradient(faster: list[int]) -> None:
    _, fast = layers(bias=False)
    fast.requires_grad_(False)
    x = torch.randn(3, 24, requires_grad=True)
    fast(x).sum().backward()
    assert fast.weight.grad is None and x.grad is not None
    assert len(faster) == 2


def test_a_recomputed_layer_has_the_same_gradient(faster: list[int]) -> None:
    plain, fast = layers(bias=True)
    x = torch.randn(3, 24, requires_grad=True)
    plain(x).sum().backward()
    made: Any = checkpoint(fast, x, use_reentrant=False)
    made.sum().backward()
    assert plain.weight.grad is not None and fast.weight.grad is not None
    torch.testing.assert_close(plain.weight.grad, fast.weight.grad)
    assert len(faster) == 4


def test_other_products_are_left_to_torch(faster: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    _, fast = layers(bias=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast(torch.randn(3, 24)).dtype is torch.bfloat16
    assert copy.deepcopy(fast).double()(torch.randn(3, 24, dtype=torch.float64)).dtype is torch.float64
    assert fast.to_empty(device="meta")(torch.empty(3, 24, device="meta")).is_meta
    _, fast = layers(bias=False)
    compiled: Any = torch.compile(fast, backend="eager")
    compiled(torch.randn(3, 24))
    monkeypatch.setattr(products, "MIN_PRODUCTS", 3 * 24 * 40 + 1)
    fast(torch.randn(3, 24))
    assert not faster
    monkeypatch.setattr(products, "MIN_PRODUCTS", 3 * 24 * 40)
    fast(torch.randn(3, 24))
    assert faster == [3]


def test_a_model_with_adapters_has_the_gradients_of_a_plain_one(faster: list[int]) -> None:
    ids = torch.arange(1, 17)[None]
    made = []
    for is_fast in (False, True):
        model: Any = tiny_model()
        if is_fast:
            use_faster_products(model)
        torch.manual_seed(1)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False))
        model(input_ids=ids, labels=ids).loss.backward()
        made.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(made[0], made[1])
    assert faster
    merged = model.merge_and_unload()
    assert isinstance(merged.model.layers[0].self_attn.q_proj, OneDnnLinear)


def test_a_gpu_machine_keeps_torchs_layers(faster: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model = tiny_model()
    use_faster_products(model)
    assert not any(isinstance(module, OneDnnLinear) for module in model.modules())


@pytest.mark.parametrize(
    ("described", "is_unused"),
    [
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512bw\n\nvendor_id\t: GenuineIntel\n", True),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2\n", False),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f\n", False),
        ("CPU implementer\t: 0x41\n", False),
        (None, False),
    ],
)
def test_processors_on_which_mkl_leaves_avx512_unused(
    described: str | None, is_unused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if described is not None:
        (tmp_path / "cpuinfo").write_text(described, encoding="utf-8")
    monkeypatch.setattr(processor, "_CPU_INFO", tmp_path / "cpuinfo")
    assert processor.leaves_avx512_unused.__wrapped__() is is_unused


@pytest.mark.parametrize(
    ("flags", "multiplies"),
    [("avx512f avx512_bf16", True), ("amx_bf16 amx_tile", True), ("avx512f avx512bw", False), ("", False)],
)
def test_processors_that_multiply_bfloat16(
    flags: str, multiplies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n", encoding="utf-8")
    monkeypatch.setattr(processor, "_CPU_INFO", tmp_path / "cpuinfo")
    assert processor.multiplies_bfloat16.__wrapped__() is multiplies
