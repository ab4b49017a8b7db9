"""Check the built site: links within it have targets, nothing is loaded from other hosts, and tables are rendered.

``python docs/check_site.py build/site`` prints each fault, and its exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Attributes whose addresses are loaded with the page, by element."""
NOT_LOADED = ("canonical", "search", "index", "next", "prev", "genindex", "author", "help", "copyright")
"""Relations of ``link`` elements that load nothing."""
RAW_TABLE = re.compile(r"^\|[\s:|-]+\|$", re.MULTILINE)
"""The second line of a table in Markdown, in the text of a page."""


@dataclass
class Page(HTMLParser):
    """The links, anchors and text of a page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    text: list[str] = field(default_factory=list)
    code: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element refers to."""
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag in LOADED and attributes.get("rel") not in NOT_LOADED and (address := attributes.get(LOADED[tag])):
            self.loaded.append(address)
        if tag == "a" and (address := attributes.get("href")):
            self.links.append(address)
        self.code += tag in ("pre", "code", "script", "style")

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        self.code -= tag in ("pre", "code", "script", "style")

    def handle_data(self, data: str) -> None:
        """Collect text that is not code."""
        if not self.code:
            self.text.append(data)


@cache
def parse(file: Path) -> Page:
    """Read a page."""
    page = Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def faults(site: Path) -> Iterator[str]:
    """Yield a sentence for each fault of the site."""
    files = sorted(site.rglob("*.html"))
    if not (site / "index.html").is_file():
        yield f"{site} has no index.html"
    for file in files:
        name = file.relative_to(site)
        page = parse(file)
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{name} loads {address} from another host"
            elif broken := _broken(site, file, address):
                yield f"{name} loads {address}: {broken}"
        for address in page.links:
            if broken := _broken(site, file, address):
                yield f"{name} links to {address}: {broken}"
        if RAW_TABLE.search("".join(page.text)):
            yield f"{name} has a table that was not rendered"


def _broken(site: Path, file: Path, address: str) -> str:
    """Return what is wrong with an address within the site; nothing for addresses elsewhere."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site.resolve()) or not target.is_file():
        return "there is no such file"
    fragment = unquote(parts.fragment)
    if fragment and target.suffix == ".html" and fragment not in parse(target).anchors:
        return "there is no such anchor"
    return ""


def main() -> int:
    """Print the faults of a site and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="folder of the built site")
    problems = list(faults(parser.parse_args().site.resolve()))
    for fault in problems:
        print(fault, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
