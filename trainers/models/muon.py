"""Muon for the matrices of hidden layers, AdamW for all other weights, as one optimizer.

Muon ("Muon: An optimizer for hidden layers in neural networks", Jordan et al., 2024) orthogonalises the update of a
matrix. Its rates are scaled to the size of AdamW's updates ("Muon is Scalable for LLM Training", Liu et al., 2025), so
that both use one learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers.models.optimizer import OptimizerConfig
from agentgym.trainers.types import CausalLM


class Muon(torch.optim.Optimizer):
    """One optimizer of torch's Muon and AdamW, with the parameter groups and states of both.

    Args:
        model: the model; its parameters with ``requires_grad`` are trained.

    Example:
        >>> from agentgym.trainers.config.train import ModelConfig
        >>> from agentgym.trainers.models.tiny import build_model, train_tokenizer
        >>> model = build_model(train_tokenizer(["go north"], 300), ModelConfig(hidden_size=32, num_layers=1), seed=0)
        >>> optimizer = Muon(model, OptimizerConfig(kind="muon"))
        >>> [len(group["params"]) for group in optimizer.param_groups]  # projections; the embedding and the norms
        [7, 6]
    """

    def __init__(self, model: CausalLM, config: OptimizerConfig) -> None:
        matrices, others = hidden_matrices(model)
        lr, decay = config.lr, config.weight_decay
        self._parts = list[torch.optim.Optimizer]()
        if matrices:
            self._parts.append(torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
        if others:  # adapters are matrices alone
            self._parts.append(torch.optim.AdamW(others, lr=lr, betas=config.betas, eps=config.eps, weight_decay=decay))
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all weights from their gradients.

        Raises:
            ValueError: ``closure`` is given; compute gradients before the step instead.
        """
        if closure is not None:
            raise ValueError("Muon takes no closure: compute the gradients before the step")
        # loading a checkpoint replaces groups and state, so that both are handed over anew
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state
            part.step()


def hidden_matrices(model: CausalLM) -> tuple[list[Tensor], list[Tensor]]:
    """Return the trained matrices of hidden layers, and all other trained parameters, in the model's order."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    of_vocabulary = {id(weight) for end in ends if end is not None for weight in end.parameters()}
    trained: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [one for one in trained if one.ndim == 2 and id(one) not in of_vocabulary]
    chosen = {id(one) for one in matrices}
    return matrices, [one for one in trained if id(one) not in chosen]
