"""Errors of programs."""

from __future__ import annotations


class LanguageError(Exception):
    """An error that ends a program. It is kept in the state and raised when the state is read."""


class BackendError(LanguageError):
    """A refusal or failure of a backend; ``status`` is the HTTP status if there is one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message if status is None else f"{message} (HTTP {status})")
        self.message, self.status = message, status
