"""The store as the server uses it: its problems in the log, and the refusals that clients get."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

from sglang_plug import (
    Facts,
    FileInUse,
    Plugins,
    StorageBroken,
    StorageError,
    StorageFull,
    StorageUnavailable,
    Store,
    StoreContext,
    UnknownId,
)
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug_api.answers.errors import SHOWN, ApiError
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.callers import Callers

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LOG_HAS_DETAILS = "the server's log has the details"


class Storage:
    """The store of a server, which alone uses it (``ServerFacts.storage``).

    Args:
        store: keeps files and batches; it is closed with this object.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.problem = ""
        """Error of the last call; empty if it succeeded."""

    def status(self) -> dict[str, Any]:
        """Return whether the store is open, and its problem, for ``/server_info``."""
        return {"open": self.store.is_open, "problem": self.problem or None}

    async def call(self, work: Awaitable[Result]) -> Result:
        """Await a call of the store; log its failure, and that it works again."""
        try:
            result = await work
        except StorageError as error:
            self.report(error)
            raise
        if self.problem:
            logger.warning("the file storage works again")
            self.problem = ""
        return result

    async def client_call(self, work: Awaitable[Result]) -> Result:
        """Await a call of the store for a client. Raises ``ApiError`` if the store refuses or fails."""
        try:
            return await self.call(work)
        except (UnknownId, FileInUse, StorageFull, StorageError) as error:
            raise storage_refusal(error) from error

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()

    def report(self, error: StorageError) -> None:
        """Log a failure of the store, unless it is the same as the last one."""
        text = str(error)
        if text == self.problem:
            return
        self.problem = text
        match error:
            case StorageBroken():
                logger.critical(
                    "the file storage is broken: %s; files and batches answer 503 from now on. %s", text, error.remedy
                )
            case StorageUnavailable(is_disk_full=True):
                logger.error("the disk of the file storage %s is full: %s", self.store.location, text)
            case _:
                logger.error("the file storage %s failed: %s", self.store.location, text)


def load_storage(config: ServerConfig, plugins: Plugins) -> Storage:
    """Make the store that ``--store`` names; nothing is opened yet. Raises ``ConfigError`` if it cannot be made."""
    component = plugins.resolve("store", config.store, Facts())
    store: Store = make_with_settings(component, store_context(config, plugins), contract=Store)
    return Storage(store)


def store_context(config: ServerConfig, plugins: Plugins | None = None) -> StoreContext:
    """Return what the store has to know about the server."""
    return StoreContext(
        folder=config.storage.file_storage_path,
        scoped=Callers(config).scoped,
        max_files=config.storage.max_files,
        max_bytes=config.storage.max_storage_bytes,
        max_responses=config.max_stored_responses,
        max_response_bytes=config.max_stored_response_bytes,
        plugins=plugins,
    )


def storage_refusal(error: Exception) -> ApiError:
    """Return the error that a client gets when the store refuses or fails."""
    match error:
        case UnknownId():
            return ApiError(f"there is no {str(error)[:SHOWN]!r} here", 404)
        case FileInUse():
            return ApiError(f"the file is in use by {error}; cancel that batch or wait until it is over", code="in_use")
        case StorageFull():
            return ApiError(str(error), 413, code="storage_full")
        case StorageBroken():
            return ApiError(f"the server's file storage is broken: {error}; {LOG_HAS_DETAILS}", 503)
        case StorageUnavailable(is_disk_full=True):
            return ApiError("the disk of the server's file storage is full", 503, code="disk_full")
        case StorageError():
            return ApiError(f"the server's file storage does not work; {LOG_HAS_DETAILS}", 503)
        case _:
            raise error
