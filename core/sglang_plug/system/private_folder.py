"""Temporary folders for this user only, for sockets and compiled files; those of killed processes are removed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from sglang_plug.config import ConfigError

FAMILY = "sglang-plug-"
"""Prefix of the names of all folders for sockets."""
LOCK = "owner.lock"
"""A file in each folder that its owner keeps locked; the system releases the lock when that process ends."""
LONGEST = 103
"""Greatest length of a unix socket's path in bytes; some systems allow a few more."""
ROOM = 32
"""Bytes for the random part of a folder's name, and for a socket's name."""
OTHERS = ("/tmp", "/var/tmp")
ATTEMPTS = 5
"""Number of folders to try if a cleaner removes one before it is locked."""


class PrivateFolder:
    """A temporary folder of this process. ``close`` removes it; if this process is killed, a later one does.

    Args:
        path: the folder.
        lock: descriptor of its locked file; ``None`` where the file system has no locks.
    """

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder and its contents; may be called by two threads."""
        lock, self._lock = self._lock, None
        shutil.rmtree(self.path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def private_folder(prefix: str, others: Sequence[str] = OTHERS) -> PrivateFolder:
    """Make a folder that only this user may enter, whose path leaves room for unix sockets in it.

    It is in the temporary folder (``TMPDIR``), or in one of ``others`` if the path of that is too long. Folders of this
    user that killed processes left there are removed. Raises ``ConfigError`` where none can be made.
    """
    usual = tempfile.gettempdir()
    for parent in (usual, *others):
        if len(os.fsencode(parent)) + len(prefix) + ROOM <= LONGEST:
            try:
                return scratch_folder(Path(parent), prefix, family=FAMILY)
            except OSError:
                continue
    raise ConfigError(
        f"no folder for sockets can be made: not in {usual!r}, whose path may be too long for them, nor in "
        f"{' or '.join(others)}; name another one with TMPDIR"
    )


def scratch_folder(parent: Path, prefix: str, *, family: str = "") -> PrivateFolder:
    """Make a folder of mode 0700 in ``parent``, and remove those that killed processes left there.

    Args:
        parent: an existing folder.
        prefix: what the new folder's name begins with.
        family: what the names of abandoned folders begin with; empty: ``prefix``.

    Raises ``OSError`` if it cannot be made.
    """
    remove_abandoned(parent, family or prefix)
    for _ in range(ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            return PrivateFolder(path, _lock(path))
        except (BlockingIOError, FileNotFoundError):
            continue  # another process found it unlocked and removes it
    raise OSError(errno.EBUSY, "folders are removed as soon as they are made", str(parent))


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove this user's folders in ``parent`` whose owner has ended.

    A folder without a lock file is left alone: nothing tells whether its owner lives.
    """
    try:
        with os.scandir(parent) as entries:
            named = [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
    except OSError:
        return
    for path in named:
        try:
            state = path.lstat()
            if state.st_uid == os.geteuid() and path.is_dir() and not path.is_symlink():
                _remove_unless_locked(path)
        except OSError:
            continue


def _remove_unless_locked(folder: Path) -> None:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(folder / LOCK)):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a new folder; return ``None`` if locks are not possible here, so that the folder is never considered
    abandoned.

    Raises ``BlockingIOError`` or ``FileNotFoundError`` if another process removes it.
    """
    path = folder / LOCK
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(path)):
            raise FileNotFoundError(errno.ENOENT, "removed by another process", str(path))
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        raise
    except OSError:
        os.close(lock)
        path.unlink(missing_ok=True)
        return None
    return lock
