"""Relative links and file names of the documentation lead to files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "plugins" / "README.md"]
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
CORE = "core/sglang_plug"
SOURCES = (
    "",
    CORE,
    f"{CORE}/contracts",
    f"{CORE}/engine",
    "api/sglang_plug_api",
    "builtin_backends/sglang_plug_backends",
)
"""Folders that paths on the architecture page are relative to."""


def text(page: Path) -> str:
    """Return the page without its code blocks."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the identifiers of the page's headings."""
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in HEADING.findall(text(page)))
    return {re.sub(r"\s", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_resolve(page: str) -> None:
    source = ROOT / page
    for link in LINK.findall(text(source)):
        path, _, anchor = link.partition("#")
        if "://" in link or path.startswith("mailto:"):
            continue
        target = (source.parent / path).resolve() if path else source
        assert target.exists(), f"{page} links to {link}, which does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page} links to {link}, but that page has no such heading"


def test_links_of_the_documentation_stay_inside_its_folder() -> None:
    for page in DOCS.rglob("*.md"):
        for link in LINK.findall(text(page)):
            if "://" not in link:
                target = (page.parent / link.partition("#")[0]).resolve()
                assert target.is_relative_to(DOCS), f"{page.relative_to(ROOT)} links to {link}: the site lacks it"


def test_every_decision_is_in_the_index() -> None:
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert len(pages) > 10
    for page in pages:
        number, title = re.match(r"# (\d+): (.*)", page.read_text(encoding="utf-8")).groups()  # type: ignore[union-attr]
        assert page.name.startswith(f"{number}-") and f"{number} [{title}]({page.name})" in index


def test_every_page_is_in_the_navigation() -> None:
    navigation = tomllib.loads((DOCS / "navigation.toml").read_text(encoding="utf-8"))
    listed = [f"{page}.md" for group in navigation["groups"] for page in group["pages"]]
    below = [
        path.relative_to(DOCS).as_posix() for pattern in navigation["below"].values() for path in DOCS.glob(pattern)
    ]
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(pages) == sorted({"index.md", *listed, *below})
    assert len(listed) == len(set(listed))


def test_files_that_the_architecture_page_and_decisions_name_exist() -> None:
    for page in [DOCS / "architecture.md", *(DOCS / "decisions").glob("*.md")]:
        for name in FILE.findall(text(page)):
            if "*" in name:
                continue
            assert any((ROOT / folder / name).exists() for folder in SOURCES), f"{page.name} names {name}"
