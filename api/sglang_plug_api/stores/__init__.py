"""The built-in store of files and batches: a folder with an SQLite database."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StoreSpec, hookimpl


@hookimpl
def register_stores() -> Iterator[StoreSpec]:
    yield StoreSpec(
        name="sqlite",
        target=f"{__name__}.sqlite.store:SQLiteStore",
        example=f"{__name__}.sqlite.example:arguments",
        summary="a folder of this machine with an SQLite database; responses stay in memory",
    )


@hookimpl(trylast=True)
def choose_component(kind: str) -> str | None:
    return "sqlite" if kind == "store" else None
