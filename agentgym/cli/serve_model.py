"""``agentgym serve-model``: start a vLLM server for training and evaluation."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentgym.cli.output import JsonFlag, Output
from agentgym.cli.server_options import AllowHost, NoToken, TokenFile, access_of, token_text
from agentgym.errors import InfrastructureError, UsageError
from agentgym.server_tokens import keeping_token

if TYPE_CHECKING:
    from agentgym.trainers.engines.vllm.launch import VllmInstall, VllmProcess


def serve_model(  # noqa: PLR0913, PLR0917  # one per option
    model: Annotated[str, typer.Argument(help="A folder, a GGUF file, pypi:PACKAGE, a hub name, or smollm2.")],
    extra: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM_FLAGS]...", help="Further flags for vLLM, after --.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token_file: TokenFile = None,
    no_token: NoToken = False,
    allow_host: AllowHost = None,
    python: Annotated[
        str, typer.Option(help="A Python or virtual environment with vLLM. [default: .venv-vllm, else this one]")
    ] = "",
    max_context_tokens: Annotated[
        int, typer.Option(min=0, help="Most tokens of prompt and completion; 0: the model's own limit.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="Number format; auto is float32 on CPUs, else the model's own.")] = "auto",
    lora_rank: Annotated[int, typer.Option(min=0, help="Highest rank of LoRA adapters to load; 0: none.")] = 0,
    weight_transfer: Annotated[
        str, typer.Option(help="nccl or ipc: copy weights from the trainer's GPU. [default: through a folder]")
    ] = "",
    sleep: Annotated[
        bool, typer.Option("--sleep", help="Free the server's GPU memory while the trainer trains.")
    ] = False,
    num_threads: Annotated[int, typer.Option(min=0, help="Threads on CPUs; 0: the number of cores minus one.")] = 0,
    start_timeout_s: Annotated[float, typer.Option(help="Seconds within which the server must be ready.")] = 600.0,
    log: Annotated[
        Path | None, typer.Option(help="File for the server's output. [default: runs/vllm-PORT.log]")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a vLLM server for training or evaluation, report when it is ready, and stop it on Ctrl-C or SIGTERM."""
    from agentgym.api.run_dirs import need_train_extra
    from agentgym.processes.remains import Remains
    from agentgym.trainers.engines.vllm.launch import ServeOptions, VllmProcess, find_vllm

    need_train_extra("serving a model")
    from agentgym.trainers.models.sources import local_model

    access = access_of(host, token_file=token_file, no_token=no_token, allow_host=allow_host)
    out = Output(as_json)
    with out.status.status(f"opening {model}"):
        folder = local_model(model)
    how = "&".join(f"{name}={value}" for name, value in _options_of(folder).items())
    install = find_vllm(python)
    _check_gpu_options(weight_transfer, sleep, install)
    options = ServeOptions(
        model=folder,
        host=host,
        port=port,
        max_context_tokens=max_context_tokens,
        dtype=dtype,
        lora_rank=lora_rank,
        weight_transfer=weight_transfer,
        can_sleep=sleep,
        num_threads=num_threads,
        token=access.token,
        names=access.names,
        extra=tuple(extra or ()),
    )
    _check_port(host, port)
    remains = Remains("agentgym-serve-model-")
    process = VllmProcess(install, options, log or Path("runs") / f"vllm-{port}.log")
    remains.add_group(process.pid)  # else the server would hold the GPU when this command is killed
    try:
        with out.status.status(f"vLLM {install.version} loads {model}") as status:
            process.wait_until_ready(
                start_timeout_s, lambda elapsed_s: status.update(f"vLLM loads {model}, {elapsed_s:.0f} s")
            )
        with keeping_token(port, access.token):
            _announce(out, process, install.version, model, token_text(access, token_file), how)
            code = process.wait()
    except KeyboardInterrupt:
        out.status.print("stopping the server")
        return
    except InfrastructureError:
        out.status.print(process.tail(), markup=False)
        raise
    finally:
        process.stop()
    out.status.print(process.tail(), markup=False)
    raise InfrastructureError(f"the vLLM server ended with code {code}; its log: {process.log_path}")


def _check_gpu_options(weight_transfer: str, sleep: bool, install: VllmInstall) -> None:
    from agentgym.trainers.kinds import TRANSFERS

    if weight_transfer and (weight_transfer not in TRANSFERS or install.is_cpu):
        raise UsageError(
            f"--weight-transfer is {' or '.join(TRANSFERS)}, between GPUs; got {weight_transfer!r}"
            + (" with a vLLM for CPUs" if install.is_cpu else "")
        )
    if sleep and install.is_cpu:
        raise UsageError("--sleep frees memory of a GPU; this vLLM is for CPUs")


def _options_of(folder: str) -> dict[str, str]:
    """Return the options of an ``openai:`` address that asks a model as it was trained.

    Raises:
        CorruptDataError: the model's files answer one question twice, or cannot be read.
    """
    from agentgym.trainers.engines.openai.trained import saved_options
    from agentgym.trainers.models.files import check_answered_once

    if not Path(folder).is_dir():
        return {"tools": "text"}
    check_answered_once(Path(folder))
    return saved_options(Path(folder)) or {"tools": "text"}


def _announce(out: Output, process: VllmProcess, version: str, source: str, about_token: str, how: str) -> None:
    value: dict[str, object] = {
        "url": process.url,
        "model": process.options.model,
        "served_name": process.name,
        "pid": process.pid,
        "token": process.options.token,
        "vllm_version": version,
        "log": str(process.log_path),
    }
    out.announce(
        value,
        f"serving {process.options.model} at [bold]{process.url}[/] (vLLM {version}, log {process.log_path})\n"
        f"train with: engine.kind=vllm 'engine.urls=\\[\"{process.url}\"]'\n"
        f"evaluate with: agentgym eval ENV --policy 'vllm:{process.url}?model={source}'\n"
        f"or by OpenAI's API: agentgym eval ENV --policy 'openai:{process.url}/v1?{how}'\n"
        f"{about_token}\n"
        "Ctrl-C or SIGTERM stops it",
    )


def _check_port(host: str, port: int) -> None:
    """Raise an error before vLLM spends a minute loading."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"port {port} of {host} cannot be used ({error.strerror}); choose another by --port"
            ) from (error)
