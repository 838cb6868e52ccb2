"""Matrix products in float32 by oneDNN, on processors where MKL leaves AVX-512 unused.

torch multiplies float32 matrices by MKL, which takes its AVX2 kernels on all processors but Intel's. oneDNN, which is a
part of torch, too, takes AVX-512 wherever it exists. On AMD's Zen 5 it was about twice as fast from 16 rows on (by
hand, 2026-11-28).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from agentgym.trainers.models.processor import leaves_avx512_unused
from agentgym.trainers.types import CausalLM

MIN_PRODUCTS, MIN_PACKED_PRODUCTS = 1 << 20, 1 << 19
"""Fewest multiplications with which oneDNN is faster, by a matrix as it is and by a packed one."""
_PACKED_FOR = 16
"""Number of rows for which oneDNN chooses the packed layout; that for one row is slow with more."""
_FINER_FROM = 512
_PLAIN = (Tensor, nn.Parameter)


@functools.cache
def has_faster_products() -> bool:
    """Return True if oneDNN multiplies float32 matrices faster than MKL on this machine."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_both and leaves_avx512_unused() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def product(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ matrix.t() + bias`` by oneDNN, without a gradient.

    Args:
        x: ``[..., K]``, float32 on the CPU.
        matrix: ``[N, K]``, contiguous or :func:`packed`.

    Example:
        >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]])).tolist()
        [[11.0, 17.0]]
    """
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    made = _multiply(_padded(rows), matrix, bias)
    made = made if len(made) == len(rows) else made[: len(rows)]
    return made if x.ndim == 2 else made.view(*x.shape[:-1], matrix.shape[0])


def _multiply(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    made: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix, bias, "none", [], "")
    return made


def padded_size(num_rows: int) -> int:
    """Return the number of rows with which so many are multiplied.

    oneDNN compiles a kernel for every number of rows, which takes a millisecond and a megabyte, and keeps it. So there
    are few numbers, at most a quarter above the rows, and an eighth from 512 on.

    Example:
        >>> [padded_size(num_rows) for num_rows in (1, 8, 9, 33, 1025)]
        [1, 8, 10, 40, 1152]
    """
    doublings = (num_rows - 1).bit_length()
    step = 1 << max(0, doublings - (4 if num_rows > _FINER_FROM else 3))
    return -(-num_rows // step) * step


def _padded(rows: Tensor) -> Tensor:
    """Return rows followed by zeros, as many as :func:`padded_size` says."""
    missing = padded_size(len(rows)) - len(rows)
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows.contiguous()


def packed(matrix: Tensor) -> Tensor:
    """Return a copy of a matrix ``[N, K]`` in the order in which oneDNN reads it for any number of rows."""
    made: Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous(), _PACKED_FOR)
    return made


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, matrix)
        return product(x, matrix.contiguous(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, matrix = ctx.saved_tensors
        needs_x, needs_matrix, needs_bias = ctx.needs_input_grad
        of_x = of_matrix = None
        grad_MN, x_MK = grad.reshape(-1, matrix.shape[0]), x.reshape(-1, matrix.shape[1])
        padded_MN = _padded(grad_MN)
        if needs_x:
            of_x = _multiply(padded_MN, matrix.t().contiguous())[: len(x_MK)].view_as(x)
        if needs_matrix:  # rows of zeros add nothing
            of_matrix = _multiply(padded_MN.t().contiguous(), _padded(x_MK).t().contiguous())
        return of_x, of_matrix, grad_MN.sum(0) if needs_bias else None


class OneDnnLinear(nn.Linear):
    """A linear layer that multiplies large float32 matrices on the CPU by oneDNN, and everything else as usual."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input @ weight.t() + bias``."""
        if not self._suits(input):
            return super().forward(input)
        made: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return made

    def _suits(self, x: Tensor) -> bool:
        if torch.compiler.is_compiling() or x.numel() * self.out_features < MIN_PRODUCTS:
            return False
        is_float32 = x.dtype is self.weight.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
        # no shards, nor tensors without data
        return is_float32 and x.device.type == "cpu" and type(x) in _PLAIN and type(self.weight) in _PLAIN


def use_faster_products(model: CausalLM) -> None:
    """Make a model's linear layers multiply by oneDNN, where that is faster; nothing else about them changes."""
    if has_faster_products() and not torch.cuda.is_available():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = OneDnnLinear
