"""Errors of stores."""

from __future__ import annotations


class StorageFull(Exception):
    """A limit of the store would be exceeded; the text is for the client."""


class FileInUse(Exception):
    """The file is still read by an open batch, whose id is the text."""


class UnknownId(Exception):
    """No file or batch has this id."""


class ContentMissing(Exception):
    """The content of a file is not in the store."""


class StorageError(Exception):
    """The store does not work. The text is for the log of the server, unless a subclass says otherwise."""


class StorageBroken(StorageError):
    """The store cannot be used until somebody repairs it.

    Args:
        message: what is broken, for clients, too: it names no path and no address.
        remedy: what an operator has to do, for the log.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class StorageUnavailable(StorageError):
    """The store does not work at the moment, and may work again.

    Args:
        message: the reason.
        is_disk_full: True if its disk is full.
    """

    def __init__(self, message: str, *, is_disk_full: bool = False) -> None:
        super().__init__(message)
        self.is_disk_full = is_disk_full
