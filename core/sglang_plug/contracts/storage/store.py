"""The contract of stores: files, batches and the results of their lines.

Several API processes may use one store at the same time. A process that dies leaves nothing behind that keeps the
others from finishing its batches: what it was working on is *claimed* for some seconds only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import StorageFull
from .records import BatchRecord, BatchStatus, FileRecord, LineResult, Page
from .responses import ResponseStore

if TYPE_CHECKING:
    from sglang_plug.plugins.registry import Plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContext:
    """The limits that a store keeps, and facts about the server that it belongs to."""

    folder: str | None = None
    """The folder of ``--file-storage-path``, for stores in files; ``None``: not set."""
    scoped: bool = False
    """True if callers see only what they own."""
    max_files: int = 10_000
    max_bytes: int = 4 << 30
    """Maximum number of bytes of all files and unfinished results together."""
    max_open_batches: int = 1000
    max_kept_batches: int = 10_000
    """Ended batches that stay listed; the oldest ones are deleted, their files stay."""
    max_responses: int = 4096
    max_response_bytes: int = 256 << 20
    plugins: Plugins | None = None
    """The plugins of this process, for a store that adds something to another one; ``None`` in tests."""

    def check_files(self, count: int) -> None:
        """Raise ``StorageFull`` if ``count`` files leave no room for another one."""
        if count >= self.max_files:
            raise StorageFull(f"the storage holds {count} files, the limit of --max-files; delete some")

    def check_bytes(self, total: int) -> None:
        """Raise ``StorageFull`` if ``total`` bytes are too many."""
        if total > self.max_bytes:
            raise StorageFull(
                f"the storage would hold more than {self.max_bytes} bytes, the limit of --max-storage-bytes; "
                "delete files"
            )

    def check_open_batches(self, count: int) -> None:
        """Raise ``StorageFull`` if ``count`` open batches leave no room for another one."""
        if count >= self.max_open_batches:
            raise StorageFull(f"{count} batches are not over yet; wait until some are")


class ContentWriter(ABC):
    """The content of a file that is being written."""

    size: int
    """Bytes that were written."""

    @abstractmethod
    async def write(self, data: bytes | bytearray) -> None:
        """Append ``data``, which may change afterwards."""

    @abstractmethod
    async def commit(self) -> None:
        """Return when the content is stored so that it survives a crash."""

    @abstractmethod
    async def discard(self) -> None:
        """Remove the content, also after ``commit``. Does not raise if that fails."""


class Store(ABC):
    """Files, batches and the results of their lines.

    All methods belong to one event loop, and several may run at once. Every change is atomic and survives a crash of
    the server once the method has returned. Methods with an ``owner`` ignore entries of other owners; ``None`` stands
    for all owners. Every method may raise ``StorageBroken`` and ``StorageUnavailable``, and no other errors but those
    that it names. Nothing has to be created or connected before the first call.

    *Claims.* A worker, which is a text that no other process uses, claims lines of a batch for some seconds of the
    store's own clock; ``WHOLE_BATCH`` stands for all of it. A claim ends with its time, with the result of its line,
    with ``release`` and with the batch.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """The location of the data, for the log: a folder, or an address without a password."""

    @property
    def is_open(self) -> bool:
        """True if the store is open or connected."""
        return True

    @property
    def exists(self) -> bool:
        """False if nothing can be stored in it yet, so that nobody needs to look for batches."""
        return True

    @property
    def responses(self) -> ResponseStore | None:
        """The store of responses; ``None``: each server keeps its own in memory."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """Finish running calls and free everything. May be called twice; a later call opens the store again."""

    @abstractmethod
    async def check_room(self) -> None:
        """Raise ``StorageFull`` unless another file fits."""

    @abstractmethod
    async def add_file(self, file: FileRecord) -> None:
        """Register a file whose content was committed. Raises ``StorageFull``."""

    @abstractmethod
    async def file(self, id: str, owner: str | None = None) -> FileRecord:
        """Return a file's record. Raises ``UnknownId``."""

    @abstractmethod
    async def files(
        self, *, limit: int, after: str | None, ascending: bool, purpose: str | None = None, owner: str | None = None
    ) -> Page[FileRecord]:
        """Return a page of files, ordered as they were added. Raises ``UnknownId`` if there is no file ``after``."""

    @abstractmethod
    async def remove_file(self, id: str, owner: str | None = None) -> None:
        """Delete a file and its content. Raises ``UnknownId``, and ``FileInUse`` while an open batch reads it."""

    @abstractmethod
    async def create_content(self, id: str) -> ContentWriter:
        """Begin the content of the file ``id``, which is registered later, or never.

        Content that a killed process left unregistered is removed some time later.
        """

    @abstractmethod
    def read_content(self, id: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file in parts. Raises ``ContentMissing``."""

    def content_path(self, id: str) -> Path | None:
        """Return the local file that has the content of ``id``; ``None`` if there is no such file.

        Clients can then ask for ranges of it.
        """
        return None

    @abstractmethod
    async def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch. Raises ``UnknownId`` if its input is missing, ``StorageFull`` if there are too many batches."""

    @abstractmethod
    async def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        """Return a batch. Raises ``UnknownId``."""

    @abstractmethod
    async def batches(
        self, *, limit: int, after: str | None, ascending: bool = False, owner: str | None = None
    ) -> Page[BatchRecord]:
        """Return a page of batches, ordered as they were added. Raises ``UnknownId`` if there is no batch ``after``."""

    @abstractmethod
    async def open_batches(self, model: str, abandoned_before: int) -> Sequence[BatchRecord]:
        """Return open batches of ``model``, oldest first; those of other models if they expired before that time."""

    @abstractmethod
    async def move(
        self, id: str, to: BatchStatus, now: int, *, total: int | None = None, errors: Sequence[Any] = ()
    ) -> BatchRecord:
        """Change a batch's status if ``BATCH_TRANSITIONS`` allows it; return the batch. Raises ``UnknownId``."""

    async def may_run_batches(self, model: str) -> bool:
        """Report whether this process may run the batches of ``model`` now.

        A store for a single machine may let one process at a time run them.
        """
        return True

    @abstractmethod
    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        """Claim those of ``lines`` that have no result and that no other worker holds; return them.

        Nobody gets a line of a batch that has ended or that another worker holds as a whole.
        """

    @abstractmethod
    async def renew(self, id: str, worker: str, seconds: float) -> None:
        """Let the claims that ``worker`` holds in a batch last for ``seconds`` from now on."""

    @abstractmethod
    async def release(self, id: str, worker: str) -> None:
        """End all claims of ``worker`` in a batch."""

    @abstractmethod
    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        """Store results and count them, each line once. Raises ``StorageFull``; then none of them is stored.

        Dropped are results of a line that another worker holds, of a batch that another worker holds as a whole, and of
        one that is neither ``in_progress`` nor ``cancelling``.
        """

    @abstractmethod
    async def done_lines(self, id: str) -> set[int]:
        """Return the numbers of the lines that have a result."""

    @abstractmethod
    async def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return some results of lines above ``after``, ordered by line: line number and payload."""

    @abstractmethod
    async def finish(
        self,
        id: str,
        to: BatchStatus,
        now: int,
        *,
        output: FileRecord | None,
        error: FileRecord | None,
        errors: Sequence[Any] = (),
        worker: str = "",
    ) -> BatchRecord | None:
        """End a batch: set its status, add its files, delete its results and its claims in one step.

        Returns ``None``, and changes nothing, if the batch's status does not lead to ``to`` any more, or if another
        worker holds the batch as a whole.
        """
