"""Location and permissions of the storage folder: only the server user may read stored files."""

from __future__ import annotations

import logging
import os
import pwd
import stat
from pathlib import Path

from sglang_plug import ConfigError

logger = logging.getLogger(__name__)

DEFAULT_FOLDER = "sglang_plug_storage"
FOLDER_MODE, FILE_MODE = 0o700, 0o600
ROOT = 0
OTHER_FOLDER = "or name another folder with --file-storage-path"


def folder_of(path: str | None) -> Path:
    """Return the folder at ``path``, or one in the user's state directory. Raises ``ConfigError`` if there is none."""
    if path is not None:
        return Path(path).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state) / DEFAULT_FOLDER
    try:
        return Path.home() / ".local" / "state" / DEFAULT_FOLDER
    except RuntimeError as error:
        raise ConfigError("this user has no home for uploaded files; set --file-storage-path") from error


def make_private(folder: Path) -> None:
    """Create ``folder`` if it is missing, and remove other users' permissions for it and its files.

    Raises ``ConfigError`` as ``check_owner`` does, and ``OSError`` if it cannot be created.
    """
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    check_owner(folder)
    _restrict(folder, FOLDER_MODE)
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            _restrict(path, FILE_MODE)


def check_owner(folder: Path) -> None:
    """Raise ``ConfigError`` if another user could read or replace stored files in ``folder``.

    Root may own it, as volumes of containers often belong to root, who can read everything anyway. A missing folder is
    accepted.
    """
    try:
        link, state = folder.lstat(), folder.stat()
    except FileNotFoundError:
        return
    ours = (os.geteuid(), ROOT)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in ours:
        raise ConfigError(f"the storage folder {folder} is a symbolic link of {_user(link)}; remove it, {OTHER_FOLDER}")
    if state.st_uid not in ours:
        raise ConfigError(
            f"the storage folder {folder} belongs to {_user(state)}, who could read and change what is stored there; "
            f"give it to the user of the server (chown), {OTHER_FOLDER}"
        )
    target = folder.resolve()
    for parent in (target, *target.parents) if state.st_uid == ROOT != os.geteuid() else target.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigError(
                f"the storage folder {folder} can be replaced by any user, because {parent} has mode "
                f"{stat.S_IMODE(mode):04o}; take write permission from others (chmod o-w), {OTHER_FOLDER}"
            )


def _restrict(path: Path, allowed: int) -> None:
    """Remove other users' permissions for ``path``; log a warning if that fails."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & ~allowed & 0o077:
        return
    try:
        path.chmod(mode & allowed)  # by path: a descriptor of the database must not be opened and closed
    except OSError as error:
        logger.warning("%s stays at mode %04o, so that others may read it: %s", path, mode, error)
        return
    logger.warning("%s had mode %04o, so that others could read it; it has %04o now", path, mode, mode & allowed)


def _user(state: os.stat_result) -> str:
    try:
        return f"user {pwd.getpwuid(state.st_uid).pw_name!r}"
    except KeyError:
        return f"user {state.st_uid}"
