"""Files, batches and responses in PostgreSQL. Declares only: this module is imported at every start."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StoreSpec, hookimpl

api_version = 1


@hookimpl
def register_stores() -> Iterator[StoreSpec]:
    yield StoreSpec(
        name="postgres",
        target=f"{__name__}.store:PostgresStore",
        settings=f"{__name__}.settings:Settings",
        example=f"{__name__}.example:arguments",
        needs=("psycopg>=3.2", "psycopg_pool"),
        summary="a PostgreSQL database that several servers share",
    )
