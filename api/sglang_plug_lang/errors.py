"""What can go wrong in a program."""

from __future__ import annotations


class LanguageError(Exception):
    """A program that cannot go on. It is kept in the state and raised when the state is read."""


class BackendError(LanguageError):
    """A backend's refusal or failure; ``status`` is the HTTP status where there is one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message if status is None else f"{message} (HTTP {status})")
        self.message, self.status = message, status
