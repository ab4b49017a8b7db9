"""Lock of the one process that runs the batches of a model."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path


class RunnerLock:
    """Lock of the one process that runs the batches of a model in a folder; the system frees it when that dies."""

    def __init__(self, folder: Path, model: str) -> None:
        self._path = folder / f"runner-{hashlib.sha256(model.encode()).hexdigest()[:32]}.lock"
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """True if this process acquired the lock and did not release it."""
        return self._descriptor is not None

    def acquire(self) -> bool:
        """Return True if this process holds the lock now; False also if the folder was removed."""
        if self._descriptor is not None:
            if self._is_at_path(self._descriptor):
                return True
            self.release()  # the lock file was deleted, so another server can lock a new one
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return self._is_at_path(descriptor)

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
