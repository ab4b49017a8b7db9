"""Pages of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

from psycopg import sql

from sglang_plug import UnknownId

from .database import Connection
from .schema import clean


async def page_rows(
    connection: Connection,
    table: LiteralString,
    columns: sql.Composable,
    filters: Mapping[str, str | None],
    limit: int,
    after: str | None,
    ascending: bool,
) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows whose columns have the values in ``filters`` (``None``: any), and whether there are more.

    Raises ``UnknownId`` if none of them has the id ``after``.
    """
    values: dict[str, Any] = {name: clean(value) for name, value in filters.items() if value is not None}
    conditions: list[sql.Composable] = [sql.SQL("TRUE")]
    conditions += [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in values]
    values["limit"] = limit + 1
    if after is not None:
        query = sql.SQL("SELECT number FROM {} WHERE id = %(after)s AND {}").format(
            sql.Identifier(table), sql.SQL(" AND ").join(conditions)
        )
        last = await (await connection.execute(query, values | {"after": clean(after)})).fetchone()
        if last is None:
            raise UnknownId(after)
        conditions.append(sql.SQL("number > %(number)s" if ascending else "number < %(number)s"))
        values["number"] = last["number"]
    query = sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY number {} LIMIT %(limit)s").format(
        columns, sql.Identifier(table), sql.SQL(" AND ").join(conditions), sql.SQL("ASC" if ascending else "DESC")
    )
    rows = await (await connection.execute(query, values)).fetchall()
    return rows[:limit], len(rows) > limit
