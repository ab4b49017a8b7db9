"""The site is built without warnings, and its pages have navigation, search, copy buttons and edit links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
CHECK = [sys.executable, str(DOCS / "check_site.py")]
REPOSITORY = "https://github.com/example/sglang-plug"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site of a repository with a web address."""
    pytest.importorskip("furo", reason="Sphinx and its theme come with the 'docs' extra")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-d", str(folder / "trees")]
    environment = {**os.environ, "DOCS_REPOSITORY": REPOSITORY}
    built = folder / "built"
    done = subprocess.run(
        [*command, str(DOCS), str(built)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return built


def test_links_lead_somewhere_and_nothing_comes_from_another_host(site: Path) -> None:
    done = subprocess.run([*CHECK, str(site)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_pages_have_navigation_search_copy_buttons_modes_and_edit_links(site: Path) -> None:
    page = (site / "kinds" / "eviction.html").read_text(encoding="utf-8")
    captions = re.findall(r'<span class="caption-text">([^<]+)</span>', page)
    assert {"Start", "Guides", "Operation", "Migration", "Plugin authors", "Reference"} <= set(captions)
    assert 'role="search"' in page and "theme-toggle" in page and "copybutton.js" in page
    assert f"{REPOSITORY}/edit/main/docs/kinds/eviction.md" in page
    assert (site / "searchindex.js").stat().st_size > 100_000


def test_the_file_name_of_a_block_is_its_caption(site: Path) -> None:
    page = (site / "kinds" / "eviction.html").read_text(encoding="utf-8")
    assert re.search(r'class="caption-text"><code[^>]*><span class="pre">sglang_plug_example/__init__\.py<', page)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="missing.html">x</a>', "there is no such file"),
        ('<a href="#missing">x</a>', "there is no such anchor"),
        ('<a href="../outside.html">x</a>', "there is no such file"),
        ('<script src="https://cdn.example.com/x.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="//cdn.example.com/x.css">', "from another host"),
        ("<p>| a | b |\n|---|---|\n| 1 | 2 |</p>", "a table that was not rendered"),
    ],
)
def test_faults_are_found(tmp_path: Path, body: str, fault: str) -> None:
    (tmp_path / "index.html").write_text(f"<html><body>{body}</body></html>")
    done = subprocess.run([*CHECK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and fault in done.stderr


def test_what_is_not_a_fault(tmp_path: Path) -> None:
    body = '<h1 id="top">x</h1><a href="#top">x</a><a href="https://example.com/">x</a><pre>|---|---|</pre>'
    (tmp_path / "index.html").write_text(f"<html><body>{body}</body></html>")
    subprocess.run([*CHECK, str(tmp_path)], check=True)
