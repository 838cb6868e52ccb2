"""The precision of a model's matrix products, and its attention kernel.

Weights, gradients and the optimizer's moments are always float32. On GPUs matrices are multiplied in bfloat16, or in
TF32 with ``loss.precision=float32``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentgym.trainers.kinds import Precision, uses_bfloat16
from agentgym.trainers.models.causal_blocks import attend_in_blocks, is_marked, marked_mask
from agentgym.trainers.models.context import context_of
from agentgym.trainers.types import CausalLM

ATTENTION = "agentgym_sdpa"
"""Name under which :func:`attend` is registered as an attention implementation of transformers."""
_BY_NAME = re.compile(r"""_attn_implementation\b[^\n]*["']sdpa["']""")
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
"""GPU kernels that never store a matrix of tokens times tokens."""


def is_bfloat16(precision: Precision, device: torch.device) -> bool:
    """Return True if matrices are multiplied in bfloat16.

    Example:
        >>> [is_bfloat16("auto", torch.device(kind)) for kind in ("cuda", "cpu")]
        [True, False]
    """
    return uses_bfloat16(precision, is_gpu=device.type == "cuda")


def dtype_for(dtypes: Collection[str]) -> torch.dtype | None:
    """Return the dtype in which weights are sent to servers with these dtypes; None, their own, if these differ.

    Example:
        >>> dtype_for({"bfloat16"}), dtype_for(["float32", "bfloat16"])
        (torch.bfloat16, None)
    """
    name, *others = dtypes
    return None if others else getattr(torch, name)


def sent_as(tensor: Tensor, dtype: torch.dtype | None, *, copy: bool = False) -> Tensor:
    """Return a tensor in the dtype in which it is sent, which is never larger than its own.

    Example:
        >>> sent_as(torch.ones(2), torch.bfloat16).dtype
        torch.bfloat16
        >>> sent_as(torch.ones(2).bfloat16(), torch.float32).dtype
        torch.bfloat16
    """
    return tensor.to(sent_dtype(tensor, dtype), copy=copy)


def sent_dtype(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype in which :func:`sent_as` sends a tensor."""
    is_rounded = dtype is not None and tensor.is_floating_point() and dtype.itemsize < tensor.dtype.itemsize
    return dtype if dtype is not None and is_rounded else tensor.dtype


def computing(precision: Precision, device: torch.device) -> torch.autocast:
    """Return a context manager in which a model's forward pass has this precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16(precision, device))


def allow_tf32(precision: Precision) -> None:
    """Allow TF32 for float32 matrix products on GPUs, unless the precision is ``float32_ieee``."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32_ieee"


def use_fused_attention(model: CausalLM) -> None:
    """Make a model use :func:`attend`, if it uses torch's attention kernels and does not ask for them by name."""
    is_torchs = model.config._attn_implementation == "sdpa"
    kinds = {type(module) for module in model.modules()}
    if is_torchs and not any(_asks_by_name(kind) for kind in kinds):  # type: ignore[arg-type]  # classes are hashable
        model.config._attn_implementation = ATTENTION


@cache  # parsing the sources of a model's layers takes longer than building a tiny model
def _asks_by_name(kind: type) -> bool:
    """Return True if a module computes something else under another name of the attention.

    Falcon is causal under ``sdpa`` alone, and DeepSeek-V3.2 then drops the mask of its index.
    """
    try:
        return bool(_BY_NAME.search(inspect.getsource(kind)))
    except (OSError, TypeError):  # made at run time, or not by Python
        return False


def skip_adapter_casts(model: CausalLM, precision: Precision) -> None:
    """Let adapters take inputs as autocast leaves them, if matrices are multiplied in bfloat16.

    peft casts them to the adapters' float32, and autocast back to bfloat16: the same numbers, two copies more for each
    matrix.
    """
    if is_bfloat16(precision, model.device):
        for module in model.modules():
            if hasattr(module, "cast_input_dtype_enabled"):
                module.cast_input_dtype_enabled = False  # type: ignore[assignment]  # of peft's layers


def takes_groups(device_type: str, dtype: torch.dtype, *, has_mask: bool) -> bool:
    """Return True if a fused kernel accepts fewer key heads than query heads.

    On a GPU only the flash kernel does, in half precision and without a mask. For others the key heads must be
    repeated; otherwise torch falls back to its math kernel, which stores a matrix of tokens times tokens per head.
    """
    return device_type != "cuda" or (dtype in (torch.bfloat16, torch.float16) and not has_mask)


def matched_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return keys and values ``[B, heads, T, D]`` with as many heads as a fused kernel needs."""
    groups = query.shape[1] // key.shape[1]
    kind = query.device.type
    # under autocast a rotated query is float32 still, and the kernel casts it
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    if groups == 1 or takes_groups(kind, dtype, has_mask=mask is not None):
        return key, value
    return key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **how: object
) -> tuple[Tensor, None]:
    """Compute attention as transformers' ``sdpa`` does, on a GPU only with fused kernels; over a row that ranks split.

    Raises:
        RuntimeError: on a GPU, no fused kernel accepts these shapes.
    """
    context = context_of(getattr(module, "config", None))
    if context is not None:
        key, value, attention_mask = context.attended(query, key, value)
    same_key, same_value = matched_heads(query, key, value, attention_mask)
    # transformers would ask the kernel to group heads that are repeated already
    of = module if same_key is key else SimpleNamespace(is_causal=getattr(module, "is_causal", True))
    if context is None and is_marked(attention_mask) and how.get("position_bias") is None:
        scale, dropout = how.get("scaling"), how.get("dropout") or 0.0
        return attend_in_blocks(query, key, value, scale, dropout), None  # type: ignore[arg-type]
    if not query.is_cuda:
        return sdpa_attention_forward(of, query, same_key, same_value, attention_mask, **how)  # type: ignore[arg-type]
    with sdpa_kernel(FUSED):
        return sdpa_attention_forward(of, query, same_key, same_value, attention_mask, **how)  # type: ignore[arg-type]


def chosen_backend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, is_causal: bool = False
) -> SDPBackend:
    """Return the attention kernel that torch would choose on the tensors' device."""
    enable_gqa = query.shape[1] != key.shape[1]
    choice = torch._fused_sdp_choice(query, key, value, mask, 0.0, is_causal, enable_gqa=enable_gqa)
    return SDPBackend(choice)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, marked_mask)
