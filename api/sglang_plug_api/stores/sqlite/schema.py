"""Schema of the database, its upgrades, and records as rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from sglang_plug import BatchRecord, FileRecord, TokenCounts

VERSION = 4
TOKENS = tuple(field.name for field in fields(TokenCounts))
"""Columns of a batch's usage."""
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, purpose TEXT NOT NULL,
    filename TEXT NOT NULL, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, owner TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, status TEXT NOT NULL, metadata TEXT, errors TEXT NOT NULL DEFAULT '[]',
    output_file_id TEXT, error_file_id TEXT, total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0, {"".join(f"{name} INTEGER NOT NULL DEFAULT 0, " for name in TOKENS)}
    result_bytes INTEGER NOT NULL DEFAULT 0, in_progress_at INTEGER,
    finalizing_at INTEGER, completed_at INTEGER, failed_at INTEGER, expired_at INTEGER, cancelling_at INTEGER,
    cancelled_at INTEGER, owner TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT NOT NULL, line INTEGER NOT NULL, succeeded INTEGER NOT NULL, payload BLOB NOT NULL,
    UNIQUE (batch, line));
CREATE TABLE IF NOT EXISTS claims (
    batch TEXT NOT NULL, line INTEGER NOT NULL, worker TEXT NOT NULL, until REAL NOT NULL, UNIQUE (batch, line));
CREATE TABLE IF NOT EXISTS database (created_at INTEGER NOT NULL);
"""
UPGRADES = {
    1: tuple(f"ALTER TABLE batches ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0" for name in TOKENS),
    2: tuple(f"ALTER TABLE {table} ADD COLUMN owner TEXT NOT NULL DEFAULT ''" for table in ("files", "batches")),
    3: (),
}
"""Maps the version of a database to the statements that upgrade it to the next version."""
BATCH_FIELDS = tuple(field.name for field in fields(BatchRecord) if field.name != "usage")
BATCH_COLUMNS = ", ".join((*BATCH_FIELDS, *TOKENS))
FILE_FIELDS = tuple(field.name for field in fields(FileRecord))
FILE_COLUMNS = ", ".join(FILE_FIELDS)


def columns_of(batch: BatchRecord) -> dict[str, Any]:
    """Return the values of a batch's columns."""
    values = {name: getattr(batch, name) for name in BATCH_FIELDS}
    values["metadata"] = None if batch.metadata is None else json.dumps(dict(batch.metadata))
    values["errors"] = json.dumps(list(batch.errors))
    return values


def batch_of(row: sqlite3.Row) -> BatchRecord:
    """Return the batch in a row with ``BATCH_COLUMNS``."""
    values = dict(row)
    values["metadata"] = None if values["metadata"] is None else json.loads(values["metadata"])
    values["errors"] = tuple(json.loads(values["errors"]))
    usage = TokenCounts(**{name: values.pop(name) for name in TOKENS})
    return BatchRecord(**values, usage=usage)


def placeholders(values: Collection[Any]) -> str:
    """Return a placeholder for each value, in parentheses."""
    return f"({', '.join('?' * len(values))})"
