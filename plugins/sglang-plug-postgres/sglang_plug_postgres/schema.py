"""Schema of the tables, its versions, and records as rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, LiteralString

from psycopg import AsyncConnection, sql

from sglang_plug import BatchRecord, FileRecord, StorageBroken, TokenCounts

MIGRATIONS: tuple[LiteralString, ...] = (
    """
    CREATE TABLE files (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text UNIQUE NOT NULL, purpose text NOT NULL,
        filename text NOT NULL, bytes bigint NOT NULL, created_at bigint NOT NULL, owner text NOT NULL);
    CREATE TABLE chunks (
        file text NOT NULL, number integer NOT NULL, data bytea NOT NULL,
        written_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (file, number));
    ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL;
    CREATE TABLE batches (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text UNIQUE NOT NULL, model text NOT NULL,
        endpoint text NOT NULL, input_file_id text NOT NULL, completion_window text NOT NULL,
        created_at bigint NOT NULL, expires_at bigint NOT NULL, status text NOT NULL, metadata json,
        errors json NOT NULL, output_file_id text, error_file_id text, total bigint NOT NULL,
        completed bigint NOT NULL, failed bigint NOT NULL, input_tokens bigint NOT NULL,
        cached_tokens bigint NOT NULL, output_tokens bigint NOT NULL, reasoning_tokens bigint NOT NULL,
        result_bytes bigint NOT NULL DEFAULT 0, in_progress_at bigint, finalizing_at bigint, completed_at bigint,
        failed_at bigint, expired_at bigint, cancelling_at bigint, cancelled_at bigint, owner text NOT NULL);
    CREATE INDEX batches_by_status ON batches (status);
    CREATE TABLE results (
        batch text NOT NULL, line integer NOT NULL, succeeded boolean NOT NULL, payload bytea NOT NULL,
        PRIMARY KEY (batch, line));
    CREATE TABLE claims (
        batch text NOT NULL, line integer NOT NULL, worker text NOT NULL, until timestamptz NOT NULL,
        PRIMARY KEY (batch, line));
    CREATE TABLE responses (
        id text PRIMARY KEY, owner text NOT NULL, answer json NOT NULL, messages json NOT NULL, items json NOT NULL,
        streams boolean NOT NULL, running boolean NOT NULL, size bigint NOT NULL, used bigint NOT NULL,
        until timestamptz NOT NULL, must_stop boolean NOT NULL DEFAULT false, deleted boolean NOT NULL DEFAULT false);
    CREATE SEQUENCE uses;
    CREATE INDEX responses_by_use ON responses (used);
    CREATE TABLE events (
        response text NOT NULL, number integer NOT NULL, data json NOT NULL, PRIMARY KEY (response, number));
    """,
)
"""Statements that lead from each version of the schema to the next one."""
FILE_FIELDS = tuple(field.name for field in fields(FileRecord))
BATCH_FIELDS = tuple(field.name for field in fields(BatchRecord) if field.name != "usage")
TOKENS = tuple(field.name for field in fields(TokenCounts))
FILE_COLUMNS = sql.SQL(", ").join(map(sql.Identifier, FILE_FIELDS))
BATCH_COLUMNS = sql.SQL(", ").join(map(sql.Identifier, (*BATCH_FIELDS, *TOKENS)))


async def prepare(connection: AsyncConnection[dict[str, Any]], schema: str) -> None:
    """Create the schema, or bring it to this version; remove contents that killed servers left behind.

    Raises ``StorageBroken`` for a schema of a later version.
    """
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", (schema,))
        known = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        if await known.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        await connection.execute("CREATE TABLE IF NOT EXISTS version (number integer NOT NULL)")
        row = await (await connection.execute("SELECT number FROM version")).fetchone()
        version = 0 if row is None else row["number"]
        if version > len(MIGRATIONS):
            raise StorageBroken(
                f"the schema has version {version}, and this server supports versions up to {len(MIGRATIONS)}",
                "Upgrade sglang-plug-postgres on this server, or choose another --set postgres.schema.",
            )
        for statements in MIGRATIONS[version:]:
            await connection.execute(statements)
        await connection.execute("DELETE FROM version")
        await connection.execute("INSERT INTO version VALUES (%s)", (len(MIGRATIONS),))
        await connection.execute(
            "DELETE FROM chunks USING ("
            "SELECT file FROM chunks LEFT JOIN files ON files.id = file WHERE files.id IS NULL "
            "GROUP BY file HAVING max(written_at) < now() - interval '1 hour'"
            ") AS orphans WHERE chunks.file = orphans.file"
        )


def clean(text: str) -> str:
    """Return text as the database can hold it: characters that it cannot hold are replaced."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def file_of(row: Mapping[str, Any]) -> FileRecord:
    """Return the file in a row with ``FILE_COLUMNS``."""
    return FileRecord(**row)


def batch_of(row: Mapping[str, Any]) -> BatchRecord:
    """Return the batch in a row with ``BATCH_COLUMNS``."""
    values = dict(row)
    values["errors"] = tuple(values["errors"])
    usage = TokenCounts(**{name: values.pop(name) for name in TOKENS})
    return BatchRecord(**values, usage=usage)


def file_values(file: FileRecord) -> dict[str, Any]:
    """Return the values of a file's columns."""
    values = {name: getattr(file, name) for name in FILE_FIELDS}
    return {name: clean(value) if isinstance(value, str) else value for name, value in values.items()}


def batch_values(batch: BatchRecord) -> dict[str, Any]:
    """Return the values of a batch's columns."""
    values = {name: getattr(batch, name) for name in BATCH_FIELDS}
    values = {name: clean(value) if isinstance(value, str) else value for name, value in values.items()}
    values["metadata"] = None if batch.metadata is None else json.dumps(dict(batch.metadata))
    values["errors"] = json.dumps(list(batch.errors))
    return values | {name: getattr(batch.usage, name) for name in TOKENS}


def insert(table: LiteralString, values: Mapping[str, Any]) -> sql.Composed:
    """Return the statement that inserts a row; its parameters are ``values``."""
    return sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(map(sql.Placeholder, values)),
    )


def update(table: LiteralString, names: Mapping[str, Any], *, add: bool = False) -> sql.Composed:
    """Return the statement that sets columns of a row, or adds to them; its parameters are ``names`` and ``id``."""
    form = sql.SQL("{0} = {0} + {1}" if add else "{0} = {1}")
    changes = [form.format(sql.Identifier(name), sql.Placeholder(name)) for name in names]
    return sql.SQL("UPDATE {} SET {} WHERE id = %(id)s").format(sql.Identifier(table), sql.SQL(", ").join(changes))
