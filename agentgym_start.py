"""The command ``agentgym``: outside the package, so that it starts where another project's package has the name."""

import importlib.metadata
import sys


def main() -> None:
    """Run the command line, or say in one line that another project's package stands in its place."""
    try:
        from agentgym import register  # noqa: F401  # missing where the other's files lie over ours
        from agentgym.cli.main import main as run
    except ImportError as error:
        try:
            other = importlib.metadata.metadata("agentgym")  # which is no name of ours for pip
        except importlib.metadata.PackageNotFoundError:
            raise error from None
        if str(other.json.get("summary")).startswith("The gym and the trainer"):  # this project, as it was named before
            raise
        print(
            f"error: Python imports agentgym {other['Version']} of PyPI, another project's package of the same name, "
            "in place of this one; run: pip uninstall agentgym, and then install this one again",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    run()
