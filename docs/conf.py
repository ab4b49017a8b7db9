"""Configuration of Sphinx, which builds this documentation: ``make docs``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.append(str(DOCS))

PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TITLED_BLOCK = re.compile(r'^```(\w+) title="([^"]+)"$', re.MULTILINE)


def repository() -> str:
    """Return the web address of the repository: ``DOCS_REPOSITORY``, or that of the remote ``origin`` if it has one."""
    if address := os.environ.get("DOCS_REPOSITORY"):
        return address.rstrip("/")
    command = ["git", "-C", str(DOCS), "remote", "get-url", "origin"]
    try:
        remote = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
    remote = re.sub(r"^(?:ssh://)?git@([\w.-]+)[:/]", r"https://\1/", remote)
    return remote.removesuffix(".git") if remote.startswith("https://") and "@" not in remote else ""


def contents(page: str) -> str:
    """Return the tables of contents of a page, hidden in its text, which the navigation shows."""
    navigation = tomllib.loads((DOCS / "navigation.toml").read_text(encoding="utf-8"))
    groups = [(group["title"], group["pages"]) for group in navigation["groups"]] if page == root_doc else []
    if pattern := navigation["below"].get(page):
        groups.append(("", sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.glob(pattern))))
    return "".join(
        "\n\n".join(["", "```{toctree}\n:hidden:\n" + (f":caption: {title}\n" if title else "")])
        + "\n".join(["", *(f"/{entry}" for entry in entries if entry != page), "```", ""])
        for title, entries in groups
    )


def prepare(app: Any, page: str, source: list[str]) -> None:
    """Add the tables of contents, and let the file name of a block (``title="FILE"``) be its caption."""
    source[0] = TITLED_BLOCK.sub(r"```{code-block} \1\n:caption: `\2`\n", source[0]) + contents(page)


def setup(app: Any) -> dict[str, bool]:
    """Register the event handlers of this configuration."""
    app.connect("source-read", prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


project = PROJECT["name"]
version = release = PROJECT["version"]
copyright = "the authors of sglang-plug"
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["**/__pycache__"]
html_extra_path = ["grafana-dashboard.json"]
nitpicky = True

myst_heading_anchors = 4

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = "sglang-plug"
html_copy_source = True
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options: dict[str, Any] = {
    "navigation_with_keys": True,
    "top_of_page_buttons": ["view", "edit"],
}
if address := repository():
    html_theme_options |= {
        "source_repository": address,
        "source_branch": os.environ.get("DOCS_BRANCH", "main"),
        "source_directory": "docs/",
    }
