"""Runs inside every worker of a vLLM server: takes weights from a shared folder and says which ones it holds.

The server's environment is another one than ours, so this file needs nothing but what vLLM brings. ``agentgym
serve-model`` puts its folder on the path and names the class by ``--worker-extension-cls``; vLLM then mixes the class
into its worker, and ``/collective_rpc`` calls its methods. They answer with an error rather than raise one: a worker
that raises in the middle of a reload takes the server down with the next request (seen with 0.32).

vLLM's own ``/weight_checker`` is no use on CPUs: there the matrices of linear layers are packed after loading, the
parameters it hashes are empty, and other weights have the same checksums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NO_VERSION = -1
"""The version of what a server loaded when it started."""
MODULUS = 1 << 64
_CHUNK = 1 << 22
_MIX = (-7046029254386353131, -4658895280553007687)
"""Odd numbers by which bits are mixed: those of splitmix64, as signed integers."""


class AgentGymWeights:
    """Mixed into vLLM's worker: ``self.model_runner`` is the worker's."""

    model_runner: Any
    _agentgym_held: tuple[int, str]

    def agentgym_load(self, folder: str, version: int, checksum: str) -> dict[str, object]:
        """Load every ``*.safetensors`` file of ``folder`` as ``version`` if they have this checksum.

        While it loads no version is held, so that a load that failed half-way is never taken for either.
        """
        try:
            paths = sorted(Path(folder).glob("*.safetensors"))
            found = checksum_of(paths)
            if found != checksum:
                what = f"its files have the checksum {found}" if paths else "it has no *.safetensors file here"
                raise ValueError(f"{folder} does not hold version {version} ({checksum}): {what}")
            self._agentgym_held = (NO_VERSION, "")
            self.model_runner.reload_weights(weights_iterator=_tensors(paths))
            _pack_again(self.model_runner.get_model())
            self._agentgym_held = (version, checksum)
        except Exception as error:
            return {**self.agentgym_held(), "error": f"{type(error).__name__}: {error}"}
        return self.agentgym_held()

    def agentgym_forget(self) -> dict[str, object]:
        """Hold no version: what comes now comes by vLLM's own transfer, in pieces."""
        self._agentgym_held = (NO_VERSION, "")
        return self.agentgym_held()

    def agentgym_received(self, version: int, checksum: str) -> dict[str, object]:
        """Name what vLLM's own transfer brought: it is ``version``."""
        try:
            _pack_again(self.model_runner.get_model())
        except Exception as error:
            return {**self.agentgym_held(), "error": f"{type(error).__name__}: {error}"}
        self._agentgym_held = (version, checksum)
        return self.agentgym_held()

    def agentgym_checksum(self, folder: str) -> dict[str, object]:
        """The checksum of the ``*.safetensors`` files of ``folder`` as this machine sees them."""
        try:
            return {"checksum": checksum_of(sorted(Path(folder).glob("*.safetensors")))}
        except OSError as error:
            return {"error": str(error)}

    def agentgym_sums(self) -> dict[str, object]:
        """Sums over the bits of the parameters in place, with the checkpoint's names for each; None where none is seen.

        On CPUs the matrices of linear layers are packed after loading, and their parameters are empty.
        """
        model = self.model_runner.get_model()
        fused = getattr(model, "packed_modules_mapping", {})
        parameters = {}
        for name, parameter in model.named_parameters():
            plain = name.replace(".base_layer.", ".")  # of a server that swaps adapters
            if ".lora_" in plain:
                continue
            *path, module, kind = plain.split(".")  # as in model.layers.0.self_attn.qkv_proj.weight
            parts = [".".join([*path, part, kind]) for part in fused.get(module, [module])]
            parameters[plain] = (parts, f"{bit_sum(parameter):x}" if parameter.numel() else None)
        dtype = str(self.model_runner.model_config.dtype).removeprefix("torch.")
        return {"dtype": dtype, "parameters": parameters}

    def agentgym_in_flight(self) -> dict[str, object]:
        """Return how many tokens each request has been given, by vLLM's name for it; None where that cannot be seen.

        To be called while the server is paused. Requests that have not been begun are left out, and so are, after a
        while, those that have ended.
        """
        runner = self.model_runner
        try:
            if (states := getattr(runner, "req_states", None)) is not None:  # vLLM's second model runner
                return {"tokens": {name: _num_given(states, at) for name, at in states.req_id_to_index.items()}}
            return {"tokens": {name: len(request.output_token_ids) for name, request in runner.requests.items()}}
        except Exception:
            return {"tokens": None}

    def agentgym_held(self) -> dict[str, object]:
        """The version and checksum of the weights in place, and what tells one model and way to serve from another."""
        import vllm

        version, checksum = getattr(self, "_agentgym_held", (NO_VERSION, ""))
        served = self.model_runner.model_config
        config = served.hf_text_config
        return {
            "version": version,
            "checksum": checksum,
            "vllm_version": vllm.__version__,
            "dtype": str(served.dtype).removeprefix("torch."),
            "logprobs_mode": str(getattr(served.logprobs_mode, "value", served.logprobs_mode)),
            "model_type": config.model_type,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
            "vocab_size": config.vocab_size,
        }


def bit_sum(tensor: Any) -> int:
    """Return the sum, modulo 2^64, of a hash of every number's bits; 0 has the hash 0.

    The trainer computes the same over its weights. The sum does not depend on the order of the numbers, on where they
    are cut into shards, nor on padding with zeros.
    """
    import torch

    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    total = 0
    for part in tensor.detach().reshape(-1).split(_CHUNK):
        bits = part.contiguous().view(kind).to(torch.int64) * _MIX[0]
        bits = (bits ^ (bits >> 31)) * _MIX[1]
        total += int((bits ^ (bits >> 29)).sum())
    return total % MODULUS


def checksum_of(paths: Sequence[Path]) -> str:
    """One SHA-256 over names and contents of files; the trainer takes the same one when it has written them."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _num_given(states: Any, at: int) -> int:
    return int(states.total_len.gpu[at]) - int(states.prompt_len.np[at])


def _pack_again(model: Any) -> None:
    """Renew the packed copies of matrices that a reload passes over.

    On CPUs an output layer that shares its matrix with the embedding computes with a packed copy of its own. A reload
    (0.32) renews the embedding's alone, and the server would go on with the output layer it started with.
    """
    for module in model.modules():
        if hasattr(module, "cpu_linear") and getattr(module, "weight", None) is not None and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)


def _tensors(paths: Sequence[Path]) -> Iterator[tuple[str, object]]:
    from safetensors import safe_open

    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # no mapping
                yield name, file.get_tensor(name)
