"""Add the files outside docs/ that its pages link to, and the page of all commands, to the documentation site."""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()((?:\.\./)*[^)\s#:]+)(#[^)\s]*)?\)")
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")


def on_files(files: Files, config: Any) -> Files:
    for name in ROOT_PAGES:
        files.append(File.generated(config, f"project/{name}", abs_src_path=str(ROOT / name)))
    for path in sorted((ROOT / "benchmarks").rglob("*")):
        if path.suffix in {".md", ".svg"} or (path.suffix == ".json" and path.parent.name == "gpu"):
            files.append(File.generated(config, uri_of(path), abs_src_path=str(path)))
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8")
        page = f"# {path.name}\n\nRun it from a checkout: `python examples/{path.name}`.\n\n```python\n{code}```\n"
        files.append(File.generated(config, uri_of(path), content=page))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        files.append(File.generated(config, uri_of(path), content=notebook_page(path)))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    return files


def notebook_page(path: Path) -> str:
    """Return a notebook as a page of the site: its texts, with links as the site has them, and its cells of code."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            parts.append(f"```python\n{source}\n```")
        else:
            parts.append(re.sub(r"\]\((\w+)\.py\)", r"](\1.md)", source).replace("](../docs/", "](../"))
    return "\n\n".join(parts)


def commands() -> str:
    """Return a page with every command and its options, as `agentgym COMMAND --help` shows them."""
    line = [sys.executable, "-m", "typer", "agentgym.cli.main", "utils", "docs", "--name", "agentgym"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    return re.sub(r"^# `agentgym`", "# Commands", done.stdout, count=1)


def uri_of(path: Path) -> str:
    """Return the name in the site of a file of the repository; pages of code and READMEs have names of their own."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name in ROOT_PAGES:
        return f"project/{name}"
    name = re.sub(r"README\.md$", "overview.md", name)
    return re.sub(r"^examples/(\w+)\.(py|ipynb)$", r"examples/\1.md", name)


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Point relative links at the names that files have in the site."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    here = posixpath.dirname(page.file.src_uri)

    def renamed(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(Path(source).parent / match[2]))
        if not target.is_file() or ROOT not in target.parents:
            return match[0]
        uri = uri_of(target)
        if files.get_file_from_path(uri) is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(uri, here or '.')}{match[3] or ''})"

    return LINK.sub(renamed, markdown)
