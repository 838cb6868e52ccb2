"""``agentgym sandbox``: build the base image and check the sandboxes of this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from agentgym.cli.exits import FAILED
from agentgym.cli.output import JsonFlag, output
from agentgym.errors import unknown_name

if TYPE_CHECKING:
    from agentgym.sandbox import Limits, Sandbox

sandbox = typer.Typer(no_args_is_help=True, help="Build the sandbox image and check the sandboxes of this machine.")


@sandbox.command("build")
def build(
    image: Annotated[
        str | None, typer.Option("--image", help="Name of the image. [default: the one that sandboxes use]")
    ] = None,
    package: Annotated[
        list[str] | None, typer.Option("--package", help="An additional Debian package; repeatable.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Build the base image of the docker sandbox from Debian packages, without an image registry."""
    from agentgym.sandboxes.images import DEFAULT_IMAGE
    from agentgym.sandboxes.images.build import build_image

    with output(as_json) as out:
        name = image or DEFAULT_IMAGE
        with out.status.status(f"making {name} (about a minute)"):
            image_id = build_image(name, package or ())
        out.result({"image": name, "id": image_id})
        out.console.print(f"{name}  {image_id}", markup=False)


@sandbox.command("check")
def check(
    backend: Annotated[str, typer.Argument(help="docker, namespaces or process.")],
    image: Annotated[str | None, typer.Option("--image", help="Image for docker.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a kind of sandbox on this machine: conformance, then attacks; exit code 1 if a promise breaks."""
    from typing import get_args

    from agentgym.check import check_sandbox
    from agentgym.check.sandbox.adversary import attack_sandbox
    from agentgym.sandboxes.images import DEFAULT_IMAGE
    from agentgym.sandboxes.ladder import BACKENDS, Backend, open_sandbox

    with output(as_json) as out:
        if backend not in get_args(Backend):
            raise unknown_name("sandbox", backend, BACKENDS)

        def opened(limits: Limits) -> Sandbox:
            return open_sandbox(backend, limits=limits, image=image or DEFAULT_IMAGE)  # type: ignore[arg-type]

        report = check_sandbox(opened)
        out.console.print(str(report), markup=False)
        out.console.print(f"{backend}: an adversary", markup=False)
        promises = attack_sandbox(opened, on_promise=lambda promise: out.console.print(str(promise), markup=False))
        is_sound = report.passed and all(promise.holds for promise in promises)
        value = asdict(report) | {"passed": is_sound, "promises": [asdict(promise) for promise in promises]}
        out.result({"sandbox": value.pop("env"), **value})
    if not is_sound:
        raise typer.Exit(FAILED)
