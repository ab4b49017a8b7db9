"""Images from a folder of the server's machine that the operator allows."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from sglang_plug import ConfigError, MediaError
from sglang_plug_api.answers.errors import SHOWN

from .url_rules import MAX_URL_LENGTH

FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class LocalFiles:
    """Reads ``file://`` URLs below a folder; symbolic links are not followed, neither to files nor to folders.

    Args:
        folder: an absolute path, or one relative to the current folder. ``None``: every URL is refused.

    Raises ``ConfigError`` if there is no such folder.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder).expanduser().absolute()
        if self._folder is not None and not self._folder.is_dir():
            raise ConfigError(f"--allowed-local-media-path {folder!r} is not a folder")

    @property
    def is_empty(self) -> bool:
        """True if no folder is allowed."""
        return self._folder is None

    def read(self, address: str, limit: int) -> bytes:
        """Return the file of at most ``limit`` bytes at a ``file://`` URL. Raises ``MediaError``."""
        parts = self._parts(address)
        with contextlib.ExitStack() as opened:
            try:
                return _content(self._open(parts, opened), limit)
            except OSError as error:
                reason = "no file is there, or a link stands in its way" if error.errno else str(error)
                raise MediaError(f"{address[:SHOWN]!r} cannot be read: {reason}") from None

    def _parts(self, address: str) -> tuple[str, ...]:
        """Return the names of the path below the folder."""
        if len(address) > MAX_URL_LENGTH:
            raise MediaError(f"an address has at most {MAX_URL_LENGTH} characters, not {len(address)}")
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
        """Open the file name by name, so that no link can be put into the path meanwhile, and return a descriptor."""
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


def _content(file: int, limit: int) -> bytes:
    content = bytearray()
    while chunk := os.read(file, limit + 1 - len(content)):
        content += chunk
        if len(content) > limit:
            raise MediaError(f"an image has more than {limit} bytes, the maximum")
    return bytes(content)
