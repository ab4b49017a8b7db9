"""The arguments with which the store is tested: a Redis server of its own, for as long as the process lives."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import SkipTest

from redis import Redis
from redis.exceptions import RedisError

from . import Settings
from .seal import SECRET
from .store import RedisStore

PROGRAMS = ("redis-server", "valkey-server")
SOCKET = "SGLANG_PLUG_REDIS_EXAMPLE"
"""The environment variable with the server's socket; processes that the test starts use the same server."""
START_SECONDS = 30.0
KILLS = 24
"""Processes that are killed while storing: what they leave is the server's, which has no files."""
SLACK = 384 << 10
"""Bytes of the budget that are left for buffers, which ``used_memory_dataset`` does not tell from blocks."""


class LocalServer:
    """A Redis server with a socket in a folder of its own, without files, started as an unprivileged user.

    Raises ``unittest.SkipTest`` if no server program is installed.
    """

    def __init__(self) -> None:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            raise SkipTest("neither redis-server nor valkey-server is installed")
        self.folder = Path(tempfile.mkdtemp(prefix="kv-redis-"))
        user = _unprivileged()
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self.socket = self.folder / "s"
        options = ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        options += ["--save", "", "--appendonly", "no", "--dir", str(self.folder), "--maxmemory-policy", "allkeys-lru"]
        self._command = [program, *options]
        self._identity: dict[str, Any] = (
            {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        )
        self.start()

    @property
    def url(self) -> str:
        """The address for ``Settings.url``."""
        return f"unix://{self.socket}"

    @property
    def client(self) -> Redis:
        """A client."""
        return Redis.from_url(self.url)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        log = self.folder / "log"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                self._command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, **self._identity
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(RedisError, OSError):
                if self.client.ping():
                    return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the Redis server did not start: {log.read_text(errors='replace')}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Kill the server, and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user to start the server as; ``None`` for the user of this process."""
    if os.geteuid() == 0:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam("nobody")
    return None


def open_store(folder: Path, capacity: int) -> RedisStore:
    """Open a store on the server of ``example``, whose contents belong to ``folder``."""
    client = Redis.from_url(url := f"unix://{os.environ[SOCKET]}")
    empty = folder / "bytes-when-empty"
    if not empty.exists():
        client.flushall()
        memory: Any = client.info("memory")
        empty.write_text(str(memory["used_memory"]))
    client.config_set("maxmemory", int(empty.read_text()) + capacity - SLACK)
    # The oldest block is dropped first. Times of use have a resolution of seconds, too coarse for a test.
    client.config_set("maxmemory-policy", "volatile-ttl")
    client.config_set("maxmemory-samples", 64)
    client.close()
    return RedisStore(Settings(url=url, expire_seconds=3600))


def example() -> dict[str, Any]:
    """Return the arguments of ``check_kv_store`` besides the store's name."""
    server = LocalServer()
    atexit.register(server.stop)
    os.environ[SOCKET] = str(server.socket)
    os.environ.setdefault(SECRET, "the secret of a test")
    return {"make": open_store, "durable": True, "kills": KILLS}
