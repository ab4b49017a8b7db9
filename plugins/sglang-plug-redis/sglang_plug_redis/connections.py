"""Connections to the server, which are used by one thread at a time and end in time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from sglang_plug import ConfigError, KVStoreError

from . import Settings

Command = tuple[bytes | str, ...]


class Session:
    """A connection that one thread uses until a deadline.

    Args:
        connection: of redis-py.
        deadline: ``time.monotonic()`` after which no answer is waited for.
    """

    def __init__(self, connection: Any, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self.outstanding = 0
        """Number of commands that were not answered yet."""

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 or less if it has passed."""
        return self._deadline - time.monotonic()

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands, whose answers are received in the same order."""
        if not commands:
            return
        self.outstanding += len(commands)
        self._connection.send_packed_command(self._connection.pack_commands(commands))

    def receive(self) -> Any:
        """Wait for the next answer. Raises ``RedisError``, also if the deadline passes."""
        answer = self._connection.read_response(timeout=max(0.001, self.remaining))
        self.outstanding -= 1
        return answer

    def call(self, *commands: Command) -> list[Any]:
        """Send commands in one piece, and return their answers."""
        self.send(commands)
        return [self.receive() for _ in commands]


class Connections:
    """A pool of connections. One that failed is opened again by its next user.

    Args:
        settings: the address and the time-out. Raises ``ConfigError`` for an address that is none.
        password: that of the server.
    """

    def __init__(self, settings: Settings, password: str | None) -> None:
        self._timeout = settings.timeout
        options: dict[str, Any] = {} if password is None else {"password": password}
        try:
            self._pool = ConnectionPool.from_url(
                settings.url,
                protocol=2,
                socket_timeout=settings.timeout,
                socket_connect_timeout=settings.timeout,
                retry=Retry(NoBackoff(), 0),
                **options,
            )
        except (RedisError, ValueError) as error:
            raise ConfigError(f"redis.url: {error}") from error

    @contextmanager
    def session(self, deadline: float | None = None) -> Iterator[Session]:
        """Use a connection; what goes wrong with it raises ``KVStoreError``. Without a deadline, it is the time-out."""
        connection: Any = None
        try:
            connection = self._pool.get_connection()
            session = Session(connection, time.monotonic() + self._timeout if deadline is None else deadline)
            yield session
            if session.outstanding:
                connection.disconnect()  # the next user must not receive these answers
        except (RedisError, OSError) as error:
            if connection is not None:
                connection.disconnect()
            raise KVStoreError(f"Redis: {error}") from error
        except BaseException:
            if connection is not None:
                connection.disconnect()
            raise
        finally:
            if connection is not None:
                self._pool.release(connection)

    def close(self) -> None:
        """Close all connections."""
        self._pool.disconnect()
