"""Operators that torchvision's builds for GPUs miss beside a torch for CPUs, without which they cannot be imported.

``make test-vllm`` copies this file into vLLM's environment with a ``.pth`` file that imports it at each start. vLLM
reads pictures by the processors of transformers, which import torchvision. No compiled operator of it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAMES = ("nms", "qnms")


class _Operators(MetaPathFinder):
    """A finder that finds nothing, and defines the operators before torchvision is found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for name in _NAMES:
                library.define(f"{name}(Tensor dets, Tensor scores, float limit) -> Tensor")  # type: ignore[no-untyped-call]
            sys.modules[__name__].__dict__["library"] = library  # the operators live as long as it does
        return None


sys.meta_path.insert(0, _Operators())
