"""The program ``agentgym`` on a CPU, as if each rank trained on a GPU: its handles hold the numbers themselves."""

from __future__ import annotations

import os

import torch

from agentgym.cli.main import main
from agentgym.trainers.engines.vllm.transfer import IpcChannel, TransferChannel
from agentgym.trainers.placement import servers


def make_channel(weight_sync: str, device: torch.device) -> TransferChannel:
    """Return a channel of handles."""
    gpu = f"GPU-{os.environ.get('RANK', '0')}"
    return IpcChannel(gpu, lambda tensor: (gpu, (tensor.float().numpy(),)))


if __name__ == "__main__":
    servers.make_channel = make_channel
    main()
