"""The Ray cluster: that of RAY_ADDRESS, or one of this machine, which ends with this process."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from sglang_plug import ConfigError

from .settings import Settings

logger = logging.getLogger(__name__)

ADDRESS = "RAY_ADDRESS"
LOOPBACK = "127.0.0.1"
SINGLE_NODE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that makes Ray listen on the loopback interface only if it is 0. It is read when ray is imported."""
JOINING = threading.Lock()
"""Held while this process, which can be in one cluster only, joins it."""


def prepare() -> None:
    """Import ray as this process needs it: before ``join``, and in the main thread if possible."""
    if not os.environ.get(ADDRESS):
        os.environ.setdefault(SINGLE_NODE, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with _own_signal_handlers():
        import ray  # noqa: F401


def join(settings: Settings, engines: int) -> None:
    """Join the cluster of RAY_ADDRESS, or start one on this machine; does nothing if this process is in a cluster.

    Blocks for seconds, and may be called from any thread. Raises ``ConfigError`` if there is no such cluster.
    """
    import ray

    with JOINING:
        if ray.is_initialized():
            return
        joined: Future[None] = Future()
        threading.Thread(target=_live, args=(joined, settings, engines), name="ray-cluster", daemon=True).start()
        joined.result()


def _live(joined: Future[None], settings: Settings, engines: int) -> None:
    """Enter the cluster, then wait for ever: Linux ends processes when the thread ends that started them."""
    try:
        if os.environ.get(ADDRESS):
            _connect(os.environ[ADDRESS])
        else:
            _start(settings, engines)
    except BaseException as error:
        joined.set_exception(error)
        return
    joined.set_result(None)
    threading.Event().wait()


def _connect(address: str) -> None:
    import ray

    try:
        ray.init(address="auto", logging_level=logging.ERROR)
    except Exception as error:  # of many kinds: no such address, other versions, a wrong token
        raise ConfigError(f"cannot join the Ray cluster of {ADDRESS}={address}: {error}") from error
    logger.info("joined the Ray cluster of %s", address)


def _start(settings: Settings, engines: int) -> None:
    import ray

    cpus = settings.cluster_cpus or max(os.cpu_count() or 1, math.ceil(engines * settings.engine_cpus))
    folder = tempfile.mkdtemp(prefix="sglang-plug-ray-")  # readable by this user only
    try:
        context = ray.init(
            address="local",
            num_cpus=cpus,
            object_store_memory=settings.object_store_mib << 20,
            include_dashboard=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        atexit.register(_stop, folder)  # after those that ray registered, so that it is called before them
        address = context.address_info["node_ip_address"]
        if address != LOOPBACK:
            raise ConfigError(
                f"a local Ray cluster would listen on {address}, where others may reach it: set {SINGLE_NODE}=0 before "
                f"ray is imported; or start a cluster with 'ray start', and name it in {ADDRESS}"
            )
    except BaseException:
        _stop(folder)
        raise
    logger.info("started a Ray cluster on %s with %d CPUs", address, cpus)


def _stop(folder: str) -> None:
    import ray

    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep the handlers of this process, which ray replaces when it is imported in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
