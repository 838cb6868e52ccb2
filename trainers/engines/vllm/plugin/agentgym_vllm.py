"""Extension of every worker of a vLLM server: loads weights from a shared folder, and reports which ones it has.

The server has its own environment, so this file imports only what comes with vLLM. ``agentgym serve-model`` adds this
folder to the path and names the class in ``--worker-extension-cls``. vLLM mixes the class into its worker, and
``/collective_rpc`` calls its methods. They return errors instead of raising them: a worker that raises during a reload
crashes the server at the next request (seen with 0.32).

vLLM's own ``/weight_checker`` does not work on CPUs. There the matrices of linear layers are packed after loading, and
the parameters that it hashes are empty, so different weights have equal checksums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NO_VERSION = -1
"""Version of the weights that a server loaded at its start."""
MODULUS = 1 << 64
_CHUNKS = {"cpu": 1 << 17}
"""Numbers that are hashed at a time, by device. On a CPU its caches hold them, and more take several times as long."""
_CHUNK = 1 << 22
_MIX = (-7046029254386353131, -4658895280553007687)
"""Odd multipliers of the hash: those of splitmix64, as signed integers."""


class AgentGymWeights:
    """Mixin of vLLM's worker, whose attributes the first three are."""

    model_runner: Any
    device: Any
    vllm_config: Any
    _agentgym_held: tuple[int, str]

    def agentgym_load(self, folder: str, version: int, checksum: str) -> dict[str, object]:
        """Load every ``*.safetensors`` file of ``folder`` as ``version``, if the files have this checksum.

        During the load the worker reports no version, so that a partial load never counts as the old or the new one.
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
        """Report no version from now on, because vLLM's own transfer is about to change the weights in pieces."""
        self._agentgym_held = (NO_VERSION, "")
        return self.agentgym_held()

    def agentgym_received(self, version: int, checksum: str) -> dict[str, object]:
        """Report the weights that vLLM's own transfer brought as ``version``."""
        try:
            _pack_again(self.model_runner.get_model())
        except Exception as error:
            return {**self.agentgym_held(), "error": f"{type(error).__name__}: {error}"}
        self._agentgym_held = (version, checksum)
        return self.agentgym_held()

    def agentgym_nccl(self) -> dict[str, object]:
        """Return the version of the NCCL library that vLLM loads, such as 22809; None with the reason if it cannot."""
        try:
            from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

            return {"nccl": NCCLLibrary().ncclGetRawVersion()}
        except Exception as error:
            return {"nccl": None, "reason": f"{type(error).__name__}: {error}"}

    def agentgym_gpu(self) -> dict[str, object]:
        """Return the id of the worker's GPU; empty on a CPU."""
        import torch

        is_gpu = torch.device(self.device).type == "cuda"
        return {"gpu": str(torch.cuda.get_device_properties(self.device).uuid) if is_gpu else ""}

    def agentgym_checksum(self, folder: str) -> dict[str, object]:
        """Return the checksum of the ``*.safetensors`` files of ``folder``, as seen from this machine."""
        try:
            return {"checksum": checksum_of(sorted(Path(folder).glob("*.safetensors")))}
        except OSError as error:
            return {"error": str(error)}

    def agentgym_sums(self) -> dict[str, object]:
        """Return bit sums of the loaded parameters, with the checkpoint's names of each; None for hidden parameters.

        On CPUs the matrices of linear layers are packed after loading, and their parameters are empty.
        """
        model = self.model_runner.get_model()
        fused = getattr(model, "packed_modules_mapping", {})
        prefixes = _checkpoint_prefixes(model)
        parameters = {}
        for name, parameter in model.named_parameters():
            plain = name.replace(".base_layer.", ".")  # of a server that swaps adapters
            if ".lora_" in plain:
                continue
            own = next((old + plain.removeprefix(new) for new, old in prefixes if plain.startswith(new)), plain)
            *path, module, kind = own.split(".")  # as in model.layers.0.self_attn.qkv_proj.weight
            parts = [".".join([*path, part, kind]) for part in fused.get(module, [module])]
            parameters[plain] = (parts, f"{bit_sum(parameter):x}" if parameter.numel() else None)
        dtype = str(self.model_runner.model_config.dtype).removeprefix("torch.")
        return {"dtype": dtype, "parameters": parameters}

    def agentgym_in_flight(self) -> dict[str, object]:
        """Return the number of sampled tokens of each request, by vLLM's name; None if it is not accessible.

        Call it while the server is paused. Requests that have not begun are left out, and so are, after a while, those
        that have ended.
        """
        runner = self.model_runner
        try:
            if (states := getattr(runner, "req_states", None)) is not None:  # vLLM's second model runner
                return {"tokens": {name: _num_given(states, at) for name, at in states.req_id_to_index.items()}}
            return {"tokens": {name: len(request.output_token_ids) for name, request in runner.requests.items()}}
        except Exception:
            return {"tokens": None}

    def agentgym_held(self) -> dict[str, object]:
        """Return version and checksum of the loaded weights, and facts about the model and the server's settings."""
        import vllm

        version, checksum = getattr(self, "_agentgym_held", (NO_VERSION, ""))
        served = self.model_runner.model_config
        config = served.hf_text_config
        lora, transfer = self.vllm_config.lora_config, self.vllm_config.weight_transfer_config
        return {
            "version": version,
            "checksum": checksum,
            "vllm_version": vllm.__version__,
            "dtype": str(served.dtype).removeprefix("torch."),
            "logprobs_mode": str(getattr(served.logprobs_mode, "value", served.logprobs_mode)),
            "can_sleep": bool(served.enable_sleep_mode),
            "takes": [*(["lora"] if lora else []), *([str(transfer.backend)] if transfer else [])],
            "model_type": config.model_type,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
            "vocab_size": config.vocab_size,
        }


def bit_sum(tensor: Any) -> int:
    """Return the sum, modulo 2^64, of a hash of every number's bits; the hash of 0 is 0.

    The trainer computes the same over its weights. The sum does not depend on the order of the numbers, on sharding, or
    on padding with zeros.
    """
    import torch

    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)  # it wraps around as the modulus does
    for part in tensor.detach().reshape(-1).split(_CHUNKS.get(tensor.device.type, _CHUNK)):
        bits = part.contiguous().view(kind).to(torch.int64, copy=True).mul_(_MIX[0])
        bits.bitwise_xor_(bits >> 31).mul_(_MIX[1])
        total += bits.bitwise_xor_(bits >> 29).sum()
    return int(total) % MODULUS


def checksum_of(paths: Sequence[Path]) -> str:
    """Return a SHA-256 over names and contents of files; the trainer computes the same one after writing them."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _checkpoint_prefixes(model: Any) -> list[tuple[str, str]]:
    """Return prefixes of parameters and those of checkpoints in their place, for models with a vision tower."""
    renamed = getattr(getattr(model, "hf_to_vllm_mapper", None), "orig_to_new_prefix", None) or {}
    found: dict[str, str] = {}
    for old, new in renamed.items():
        if new:
            found.setdefault(new, old)
    return sorted(found.items(), key=lambda pair: -len(pair[0]))


def _num_given(states: Any, at: int) -> int:
    return int(states.total_len.gpu[at]) - int(states.prompt_len.np[at])


def _pack_again(model: Any) -> None:
    """Update the packed copies of matrices that a reload does not update.

    On CPUs an output layer that shares its matrix with the embedding uses its own packed copy. A reload (0.32) updates
    only the embedding's copy, and the server would keep using the output layer from its start.
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
