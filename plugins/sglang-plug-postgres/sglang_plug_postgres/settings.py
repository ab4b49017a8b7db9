"""The settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings given as ``--set postgres.url=postgresql://USER@HOST/DATABASE``."""

    url: str = ""
    """Connection string of libpq; what it leaves out comes from ``PGPASSWORD``, ``PGHOST`` and libpq's other
    variables."""
    schema: str = "sglang_plug"
    """Schema of the tables; servers with the same schema share their data."""
    connections: int = 8
    """Maximum number of connections of one server, besides one that waits for notifications."""
    timeout: float = 10.0
    """Seconds to wait for a connection before a call fails."""

    def __post_init__(self) -> None:
        if not self.schema or len(self.schema.encode()) > 63 or "\0" in self.schema:
            raise ValueError(f"schema is {self.schema!r}, but must be a name of 1 to 63 bytes")
        if self.connections < 1:
            raise ValueError(f"connections is {self.connections}, but must be at least 1")
        if self.timeout <= 0:
            raise ValueError(f"timeout is {self.timeout}, but must be more than 0")
