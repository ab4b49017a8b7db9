"""A PostgreSQL server for tests: in a temporary folder, as an unprivileged user, at a Unix socket."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USERS = ("postgres", "nobody")
"""Users that may run the server where the tests run as root, which PostgreSQL refuses."""


def binaries() -> Path | None:
    """Return the folder with ``initdb`` and ``pg_ctl`` of the newest version, or ``None``."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    folders.sort(key=lambda folder: float(folder.parent.name))
    initdb = shutil.which("initdb")
    return folders[-1] if folders else Path(initdb).parent if initdb else None


class PostgresServer:
    """A server that can be stopped and started again."""

    def __init__(self, binaries: Path, folder: Path, user: int | None) -> None:
        self._binaries, self._folder, self._user = binaries, folder, user

    @property
    def url(self) -> str:
        """The connection string of its database."""
        return f"postgresql:///postgres?host={self._folder}&user=postgres"

    def create(self) -> None:
        """Create the database."""
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = f"-c listen_addresses='' -c unix_socket_directories={self._folder} -c fsync=off"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", f"{self._folder}/log", "-o", options, "start")

    def stop(self) -> None:
        """Stop the server; open connections are closed."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    @property
    def _data(self) -> str:
        return f"{self._folder}/data"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        done = subprocess.run(
            command, user=self._user, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        assert done.returncode == 0, done.stdout.decode()


@contextmanager
def postgres_server(binaries: Path) -> Iterator[PostgresServer]:
    """Start a server; it ends with the context."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:  # short enough for a socket
        user = None
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            user = pwd.getpwnam(next(name for name in USERS if name in names)).pw_uid
            os.chown(folder, user, -1)
        server = PostgresServer(binaries, Path(folder), user)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
