"""Conformance test of stores: files, batches, claims and responses, for one server and for several."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from sglang_plug.contracts.storage.store import Store, StoreContext
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.registry import Plugins

from .batches import check_batches, check_kept_batches, check_results, check_transitions
from .claims import check_claims, check_finish, check_kills, check_two_workers
from .files import check_contents, check_file_limits, check_files
from .opened import OpenStore, Servers
from .responses import check_events, check_responses, check_running_responses

TIMEOUT_SECONDS = 240.0
"""Seconds after which a check has failed that does not end."""
Check = Callable[[Servers], Awaitable[None]]
CHECKS: tuple[Check, ...] = (
    check_files,
    check_contents,
    check_file_limits,
    check_transitions,
    check_results,
    check_batches,
    check_kept_batches,
    check_claims,
    check_two_workers,
    check_finish,
)
RESPONSE_CHECKS: tuple[Check, ...] = (check_responses, check_events, check_running_responses)


def check_store(store: str | OpenStore, *, make: OpenStore | None = None, kills: int = 3) -> None:
    """Check that a store keeps what the contract promises: alone, for two servers at once, and when servers are killed.

    Tests files and their contents, pages, owners, limits, changes of a batch's status, results that are counted once,
    claims of lines by two workers, the end of a batch that two workers want to write, and responses with their events
    if the store has them.

    Args:
        store: the name that an installed plugin declared it under, or the same as ``make``.
        make: opens the store that belongs to a folder, with the limits of a ``StoreContext``; an importable function.
            Stores of one folder share their data, those of different folders do not. Without it, the store is made with
            its default settings and the folder in its context, and no server is killed.
        kills: number of processes that are killed while they hold claims.

    Raises:
        AssertionError: names the rule that was broken.
        PluginError: no plugin, or more than one, declares the name.
    """
    importable = make is not None or not isinstance(store, str)
    if not isinstance(store, str):
        make = store
    elif make is None:
        make = _maker(store)
    with tempfile.TemporaryDirectory(prefix="store-") as parent:
        asyncio.run(_check(make, Path(parent), kills if importable else 0))


def _maker(name: str) -> OpenStore:
    plugins = Plugins.discover()
    component = plugins.get("store", name)

    def make(folder: Path, context: StoreContext) -> Store:
        context = replace(context, folder=str(folder), plugins=plugins)
        store: Store = make_with_settings(component, context, contract=Store)
        return store

    return make


async def _check(make: OpenStore, parent: Path, kills: int) -> None:
    async with _named("opening and closing"), Servers(make, parent / "first") as servers:
        has_responses = servers.open().responses is not None
    for check in (*CHECKS, *(RESPONSE_CHECKS if has_responses else ())):
        await _run(make, parent / check.__name__, check)
    for number in range(kills):
        await _run(make, parent / f"killed-{number}", check_kills)


async def _run(make: OpenStore, folder: Path, check: Check) -> None:
    async with _named(check.__name__), Servers(make, folder) as servers:
        await check(servers)


@asynccontextmanager
async def _named(name: str) -> AsyncIterator[None]:
    """Raise ``AssertionError`` with the name of what is checked for every other error, and if it does not end."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            yield
    except AssertionError:
        raise
    except TimeoutError:
        raise AssertionError(f"{name} did not end within {TIMEOUT_SECONDS:g} s") from None
    except Exception as error:
        raise AssertionError(f"{name}: a call that must succeed raised {type(error).__name__}: {error}") from error
