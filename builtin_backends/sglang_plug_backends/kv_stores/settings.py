"""Options of the built-in KV stores."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

AUTO = "auto"
DEFAULT_MAX_BYTES = 4 << 30
"""Bytes of memory that a store takes at most, unless a size is given."""
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
WILDCARDS = ("", "*", "0.0.0.0", "::")
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_bytes(text: int | str) -> int:
    """Return a number of bytes, such as ``50GB``; a GB is ``2**30`` bytes. Raises ``ValueError`` for other text."""
    match = SIZE.fullmatch(str(text))
    if match is None or (size := int(float(match[1]) * UNITS[match[2].lower()])) < 1:
        raise ValueError(f"bytes must be a size, such as 50GB or 512MB, not {text!r}")
    return size


def parse_memory(text: int | str) -> int:
    """Return a number of bytes, see ``parse_bytes``; ``auto``: 4 GB, or an eighth of the machine's memory if less."""
    if text != AUTO:
        return parse_bytes(text)
    return min(DEFAULT_MAX_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings given as ``--set host.KEY=VALUE``."""

    bytes: int | str = AUTO
    """Memory for blocks, such as ``16GB``; ``auto``: 4 GB, or an eighth of the machine's memory if that is less."""

    def __post_init__(self) -> None:
        parse_memory(self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """Settings given as ``--set disk.KEY=VALUE``."""

    path: str = ""
    """The directory; it is created if its parent exists. Must be given."""
    bytes: int | str = "16GB"
    """Maximum number of bytes of all files in the directory, those of other servers included."""
    eviction: Literal["lru", "fifo"] = "lru"
    """The file that is removed first when the directory is full: the one whose blocks were used longest ago, or the
    oldest."""

    def __post_init__(self) -> None:
        parse_bytes(self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Settings given as ``--set transfer.KEY=VALUE``."""

    secret_file: str = ""
    """A file with the secret of at least 16 bytes that all engines of the server share; by default that of the
    environment variable SGLANG_PLUG_TRANSFER_SECRET, and with ``--prefill-replicas`` on one machine a new one."""
    bytes: int | str = AUTO
    """Memory of each engine for blocks that it has computed or received, such as ``16GB``; the least recently used ones
    are dropped. ``auto``: 4 GB, or an eighth of the machine's memory if that is less."""
    host: str = "127.0.0.1"
    """Address of this machine that the other engines connect to, or the network interface that has it, such as
    ``eth0``."""
    port: int = 0
    """Port to receive blocks at; 0: a free one for each engine."""
    timeout_seconds: float = 2.0
    """Seconds for which sending waits for the other engine before it fails."""

    def __post_init__(self) -> None:
        parse_memory(self.bytes)
        if self.timeout_seconds <= 0:
            raise ValueError(f"timeout_seconds must be above 0, not {self.timeout_seconds}")
        if self.host in WILDCARDS:
            raise ValueError(f"host must be an address or an interface that other engines reach, not {self.host!r}")
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")
