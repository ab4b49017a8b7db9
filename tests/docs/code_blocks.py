"""The blocks of code in the documentation, and how each is checked."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "plugins/README.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
)
FENCE = re.compile(r"^```([a-z]*)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("bash", "sh", "console", "")
DATA = ("yaml", "toml", "json")
NOT_CODE = ("text", "dockerfile")
"""Languages of blocks that show output, notation, or files that need programs other than this project."""


@dataclass(frozen=True)
class Block:
    """A block between fences."""

    page: str
    """File, relative to the repository."""
    language: str
    title: str
    text: str
    line: int

    @property
    def location(self) -> str:
        """Page and line of the block, for messages."""
        return f"{self.page}:{self.line}"

    def exemption(self) -> Exemption | None:
        """Return the entry by which the block is exempt from execution, if there is one."""
        return next((entry for entry in exemptions() if entry.applies_to(self)), None)

    def commands(self) -> Iterator[str]:
        """Yield the commands of a shell block, each on one line and without comments."""
        text = self.text.replace("\\\n", " ")
        for line in text.splitlines():
            if self.language == "console":
                if not line.startswith("$ "):
                    continue
                line = line.removeprefix("$ ")
            if command := re.sub(r"(^|\s+)#.*$", "", line).strip():
                yield re.sub(r"\s{2,}", " ", command).removeprefix(".venv/bin/")


@dataclass(frozen=True)
class Exemption:
    """Blocks, or commands of blocks, that are not executed here, with the reason or the test that does it."""

    reason: str
    page: str = ""
    title: bool = False
    starts: str = ""
    command: str = ""

    def applies_to(self, block: Block) -> bool:
        """Return True if the entry exempts a whole block."""
        if self.command or not re.fullmatch(self.page, block.page):
            return False
        return (not self.title or bool(block.title)) and block.text.startswith(self.starts)

    def applies_to_command(self, command: str) -> bool:
        """Return True if the entry exempts a command."""
        return bool(self.command) and re.match(self.command, command) is not None


@cache
def exemptions() -> tuple[Exemption, ...]:
    """Return the entries of ``not_executed.toml``."""
    entries = tomllib.loads((Path(__file__).parent / "not_executed.toml").read_text(encoding="utf-8"))
    return tuple(Exemption(**entry) for entry in entries["exemptions"])


@cache
def blocks() -> tuple[Block, ...]:
    """Return the blocks of all pages, in order."""
    return tuple(block for page in PAGES for block in _blocks_of(page))


def _blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match[2])
        line = text.count("\n", 0, match.start()) + 1
        name = page.relative_to(ROOT).as_posix()
        yield Block(name, match[1], title[1] if title else "", match[3], line)


def command_exemption(command: str) -> Exemption | None:
    """Return the entry by which a command is exempt from execution, if there is one."""
    return next((entry for entry in exemptions() if entry.applies_to_command(command)), None)


def words(command: str) -> list[str]:
    """Split a command as a shell does."""
    return shlex.split(command)
