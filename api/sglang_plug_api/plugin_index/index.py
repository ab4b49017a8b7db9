"""Index files: lists of plugin distributions, in TOML, from this package, another file or the web."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sglang_plug import PluginError
from sglang_plug.plugins.installed.discovery import normalise

from .contract_range import ContractRange

BUILT_IN = Path(__file__).with_name("index.toml")
MAX_BYTES = 4 << 20
TIMEOUT_S = 10.0


def _printable(text: str) -> str:
    """Refuse line breaks and control characters, which could forge the output of the command."""
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


def _canonical(name: str) -> str:
    if name != normalise(name):
        raise ValueError(f"must be in its canonical spelling, {normalise(name)!r}")
    return name


def _range(text: str) -> str:
    ContractRange.parse(text)
    return text


Line = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Kind = Annotated[str, Field(pattern=r"^[a-z]+(-[a-z]+)*$")]


class IndexEntry(BaseModel):
    """A distribution in an index."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    distribution: Annotated[Line, AfterValidator(_canonical)]
    """Name of the distribution, as for pip."""
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1)]
    """Kinds of its components."""
    summary: Line
    homepage: Annotated[Line, Field(pattern=r"^(https://\S+|plugins/[\w.-]+)$")]
    """An address with ``https://``, or a folder in the repository of sglang-plug."""
    licence: Line
    """An SPDX expression: ``Apache-2.0``."""
    contract: Annotated[Line, AfterValidator(_range)]
    """The versions of the contract that it works with: ``>=1.0,<2``."""

    def matches(self, words: Sequence[str]) -> bool:
        """Report whether every word occurs in the name, the kinds or the summary, in lower or upper case."""
        text = " ".join((self.distribution, *self.kinds, self.summary)).lower()
        return all(word.lower() in text for word in words)


class Index(BaseModel):
    """The content of an index file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plugins: tuple[IndexEntry, ...] = ()


def read_index(source: str | None) -> list[IndexEntry]:
    """Return the entries of an index by name, of the built-in one for ``None``; a file or an address is read.

    Raises ``PluginError`` that says what is wrong with it, and with which entry.
    """
    location = source or str(BUILT_IN)
    content = _download(location) if urlsplit(location).scheme in ("http", "https") else _read(location)
    try:
        table = tomllib.loads(content.decode())
    except ValueError as error:
        raise PluginError(f"the index {location} is not TOML: {error}") from error
    try:
        entries = Index.model_validate(table).plugins
    except ValidationError as error:
        raise PluginError(f"the index {location} is wrong: {_first_problem(error, table)}") from error
    names = [entry.distribution for entry in entries]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise PluginError(f"the index {location} lists {', '.join(duplicates)} more than once")
    return sorted(entries, key=lambda entry: entry.distribution)


def _first_problem(error: ValidationError, table: dict[str, object]) -> str:
    problem = error.errors()[0]
    where = [str(part) for part in problem["loc"]]
    rows = table.get("plugins")
    if len(where) > 1 and isinstance(rows, list) and isinstance(row := rows[int(where[1])], dict):
        where[:2] = [ascii(row.get("distribution", f"entry {int(where[1]) + 1}"))]
    return f"{'.'.join(where)}: {problem['msg']}"


def _read(location: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise PluginError(f"the index {location} cannot be read: {error}") from error


def _download(address: str) -> bytes:
    content = bytearray()
    try:
        with httpx.stream("GET", address, timeout=TIMEOUT_S, follow_redirects=True) as response:
            response.raise_for_status()
            for part in response.iter_bytes():
                content += part
                if len(content) > MAX_BYTES:
                    raise PluginError(f"the index {address} has more than {MAX_BYTES >> 20} MiB")
    except httpx.HTTPError as error:
        raise PluginError(f"the index {address} cannot be read: {type(error).__name__}: {error}") from error
    return bytes(content)
