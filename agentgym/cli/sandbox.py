"""``agentgym sandbox``: make the base image, and check the sandboxes of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgym.cli.exits import FAILED
from agentgym.cli.output import JsonFlag, output

sandbox = typer.Typer(no_args_is_help=True, help="Make the sandbox image, and check the sandboxes of this machine.")


@sandbox.command("build")
def build(
    image: Annotated[str | None, typer.Option("--image", help="Its name; by default the one that is used.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make the base image of the docker sandbox from Debian's packages; needs no registry."""
    from agentgym.sandboxes.images import DEFAULT_IMAGE
    from agentgym.sandboxes.images.build import build_image

    with output(as_json) as out:
        name = image or DEFAULT_IMAGE
        with out.status.status(f"making {name} (about a minute)"):
            image_id = build_image(name)
        out.result({"image": name, "id": image_id})
        out.console.print(f"{name}  {image_id}", markup=False)


@sandbox.command("check")
def check(
    backend: Annotated[str, typer.Argument(help="docker, namespaces or process.")],
    image: Annotated[str | None, typer.Option("--image", help="For docker.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the conformance checks on a kind of sandbox, as it is on this machine; exit code 1 if one fails."""
    from dataclasses import asdict
    from typing import get_args

    from agentgym.check import check_sandbox
    from agentgym.errors import unknown_name
    from agentgym.sandboxes.images import DEFAULT_IMAGE
    from agentgym.sandboxes.ladder import BACKENDS, Backend, open_sandbox

    with output(as_json) as out:
        if backend not in get_args(Backend):
            raise unknown_name("sandbox", backend, BACKENDS)
        report = check_sandbox(
            lambda limits: open_sandbox(backend, limits=limits, image=image or DEFAULT_IMAGE)  # type: ignore[arg-type]
        )
        value = asdict(report)
        out.result({"sandbox": value.pop("env"), **value})
        out.console.print(str(report), markup=False)
    if not report.passed:
        raise typer.Exit(FAILED)
