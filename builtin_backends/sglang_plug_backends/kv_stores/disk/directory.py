"""The directory of a disk store: its generation, and the segment files of that generation.

::

    DIR/generation         the number of the current generation; replaced by an atomic rename
    DIR/g1/*.kv            segment files of generation 1

Emptying the store begins a new generation. Servers that share the directory read the number before they use a block,
so that none returns an older one, even if it could not be removed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from sglang_plug import ConfigError

from .segment import SUFFIX, Segment

GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """The files of a disk store."""

    path: Path

    @classmethod
    def create(cls, path: str) -> StoreDirectory:
        """Return the directory at ``path``, which is made if it does not exist.

        Raises ``ConfigError`` if it cannot be used, or if it has contents of others.
        """
        if not path:
            raise ConfigError("the KV store 'disk' needs a directory: --set disk.path=DIR")
        directory = cls(Path(path).expanduser().absolute())
        try:
            directory.path.mkdir(mode=0o700, exist_ok=True)
            directory.check_owner()
            if not (directory.path / GENERATION).exists() and any(directory.path.iterdir()):
                raise ConfigError(f"disk.path: {directory.path} is not empty, and not a directory of KV blocks")
            directory.begin()
        except OSError as error:
            raise ConfigError(f"disk.path: {directory.path} cannot be used: {error}") from error
        return directory

    @classmethod
    def existing(cls, path: str) -> StoreDirectory:
        """Return the directory at ``path``. Raises ``ConfigError`` if it is none of a disk store."""
        directory = cls(Path(path).expanduser().absolute())
        if not (directory.path / GENERATION).is_file():
            raise ConfigError(f"{directory.path} is not a directory of KV blocks: it has no file {GENERATION!r}")
        return directory

    def check_owner(self) -> None:
        """Raise ``ConfigError`` if other users can write to the directory: blocks are used as they are."""
        state = self.path.stat()
        if state.st_uid not in (os.geteuid(), 0) or state.st_mode & 0o022:
            raise ConfigError(f"disk.path: other users can write to {self.path}; use a directory with mode 0700")

    def begin(self) -> None:
        """Make what is missing: the generation's number and its folder."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        if self.generation() == 0:
            self._write_generation(max(self._numbers(), default=0) + 1, replace=False)
        self.segments_folder(self.generation()).mkdir(mode=0o700, exist_ok=True)

    def generation(self) -> int:
        """Return the number of the current generation; 0 if there is none."""
        try:
            text = (self.path / GENERATION).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return 0
        return int(text) if text.isdecimal() else 0

    def clear(self) -> int:
        """Begin a new generation, remove the files of earlier ones, and return its number. Raises ``OSError``."""
        number = max([self.generation(), *self._numbers()]) + 1
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.segments_folder(number).mkdir(mode=0o700, exist_ok=True)
        self._write_generation(number, replace=True)
        for other in self._numbers():
            if other < number:
                shutil.rmtree(self.segments_folder(other), ignore_errors=True)
        return number

    def segments_folder(self, generation: int) -> Path:
        """Return the folder of a generation's files."""
        return self.path / f"g{generation}"

    def segment_paths(self, generation: int) -> list[Path]:
        """Return the segment files of a generation, the oldest first."""
        with contextlib.suppress(OSError):
            with os.scandir(self.segments_folder(generation)) as entries:
                return sorted(Path(entry.path) for entry in entries if entry.name.endswith(SUFFIX))
        return []

    def new_segment(self, generation: int) -> Path:
        """Return the path of a file that does not exist yet; names sort by the time at which they were made."""
        return self.segments_folder(generation) / f"{time.time_ns():020d}-{secrets.token_hex(4)}{SUFFIX}"

    def _numbers(self) -> list[int]:
        names = [entry.name[1:] for entry in self.path.iterdir() if entry.name.startswith("g")]
        return [int(name) for name in names if name.isdecimal()]

    def _write_generation(self, number: int, *, replace: bool) -> None:
        """Set the number; without ``replace`` another process may have been faster."""
        draft = self.path / f".{GENERATION}-{secrets.token_hex(4)}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{number}\n")
        final = self.path / GENERATION
        try:
            if not replace and not final.exists():
                with contextlib.suppress(OSError):  # it exists by now, or the file system has no links
                    os.link(draft, final)
            if replace or self.generation() == 0:
                os.replace(draft, final)
        finally:
            draft.unlink(missing_ok=True)


def remove_until(segments: list[Segment], max_bytes: int, total: int) -> list[Segment]:
    """Remove files, the first of ``segments`` first, until at most ``max_bytes`` of ``total`` bytes are left.

    Files that a process still writes to are left. Returns the removed ones.
    """
    removed: list[Segment] = []
    for segment in segments:
        if total <= max_bytes:
            break
        if segment.is_locked():
            continue
        total -= segment.size
        segment.path.unlink(missing_ok=True)
        removed.append(segment)
    return removed
