"""Folders for the sockets that processes of this user talk through."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .config import ConfigError

LONGEST = 103
"""Bytes of a unix socket's path; some systems allow a few more."""
ROOM = 32
"""Bytes for what is random in a folder's name, and for a socket's name."""
OTHERS = ("/tmp", "/var/tmp")


def private_folder(prefix: str) -> Path:
    """Make a folder that only this user may enter, whose path leaves room for unix sockets in it.

    It is in the temporary folder (``TMPDIR``), unless the path of that is too long. Raises ``ConfigError`` where none
    can be made.
    """
    usual = tempfile.gettempdir()
    for parent in (usual, *OTHERS):
        if len(os.fsencode(parent)) + len(prefix) + ROOM <= LONGEST:
            try:
                return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # mode 0700
            except OSError:
                continue
    raise ConfigError(
        f"no folder for sockets can be made: not in {usual!r}, whose path may be too long for them, nor in "
        f"{' or '.join(OTHERS)}; name another one with TMPDIR"
    )
