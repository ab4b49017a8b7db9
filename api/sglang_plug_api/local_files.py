"""Images from a folder of the server's machine that the operator named."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from sglang_plug import ConfigError, MediaError

from .addresses import LONGEST
from .errors import SHOWN

FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class LocalFiles:
    """Reads ``file://`` addresses below a folder; links are not followed, neither to files nor to folders.

    Args:
        folder: an absolute path, or one from the current folder. ``None``: every address is refused.

    Raises ``ConfigError`` if there is no such folder.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder).expanduser().absolute()
        if self._folder is not None and not self._folder.is_dir():
            raise ConfigError(f"--allowed-local-media-path {folder!r} is not a folder")

    @property
    def is_empty(self) -> bool:
        """True if nothing is allowed."""
        return self._folder is None

    def read(self, address: str, most: int) -> bytes:
        """The file of at most ``most`` bytes at a ``file://`` address. Raises ``MediaError``."""
        parts = self._parts(address)
        with contextlib.ExitStack() as opened:
            try:
                return _content(self._open(parts, opened), most)
            except OSError as error:
                reason = "no file is there, or a link stands in its way" if error.errno else str(error)
                raise MediaError(f"{address[:SHOWN]!r} cannot be read: {reason}") from None

    def _parts(self, address: str) -> tuple[str, ...]:
        """The names from the folder on."""
        if len(address) > LONGEST:
            raise MediaError(f"an address has at most {LONGEST} characters, not {len(address)}")
        try:
            split = urlsplit(address)
            path = PurePosixPath(unquote(split.path, errors="strict"))
        except ValueError:
            raise MediaError(f"{address[:SHOWN]!r} is not a valid file address") from None
        if split.netloc not in ("", "localhost") or split.query or split.fragment or "\0" in str(path):
            raise MediaError(f"{address[:SHOWN]!r} is not of the form file:///folder/image.png")
        if self._folder is None or ".." in path.parts or not path.is_relative_to(self._folder):
            raise MediaError(f"{address[:SHOWN]!r} is not in the folder that this server reads images from")
        return path.relative_to(self._folder).parts

    def _open(self, parts: tuple[str, ...], opened: contextlib.ExitStack) -> int:
        """A descriptor, found name by name so that nothing can be put in the way meanwhile."""
        assert self._folder is not None
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        opened.callback(os.close, folder)
        for name in parts[:-1]:
            folder = os.open(name, FLAGS | os.O_DIRECTORY, dir_fd=folder)
            opened.callback(os.close, folder)
        file = os.open(parts[-1] if parts else ".", FLAGS | os.O_NONBLOCK, dir_fd=folder)
        opened.callback(os.close, file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise MediaError("it is not a file")
        return file


def _content(file: int, most: int) -> bytes:
    found = bytearray()
    while chunk := os.read(file, most + 1 - len(found)):
        found += chunk
        if len(found) > most:
            raise MediaError(f"an image has more than {most} bytes, the most that is read")
    return bytes(found)
