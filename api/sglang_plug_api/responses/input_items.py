"""Input items of a response, as ``/v1/responses/{id}/input_items`` lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from sglang_plug_api.answers.errors import SHOWN, ApiError
from sglang_plug_api.protocol.items import IMAGE_PART
from sglang_plug_api.protocol.items import Item as GivenItem
from sglang_plug_api.text.job import new_id

PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
"""Maps the type of an item to the prefix of its id."""

Item = Mapping[str, Any]


class ItemQuery(BaseModel):
    """Query of ``GET /v1/responses/{id}/input_items``."""

    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    limit: int = Field(20, ge=1, le=100)


class RetrieveQuery(BaseModel):
    """Query of ``GET /v1/responses/{id}``: the response, or its events after a number."""

    stream: bool = False
    starting_after: int = Field(-1, ge=-1)


def full_items(input: str | Sequence[GivenItem]) -> list[Item]:
    """Return the items of a request's input with all optional fields filled in.

    Pages of them begin behind an id, so an item whose id an earlier one has gets another.
    """
    if isinstance(input, str):
        return [_item({"role": "user", "content": input})] if input else []
    items, ids = list[Item](), set[str]()
    for entry in input:
        fields = entry.model_dump(exclude_none=True)
        if fields.get("id") in ids:
            del fields["id"]
        items.append(_item(fields))
        ids.add(items[-1]["id"])
    return items


def items_page(items: Sequence[Item], query: ItemQuery) -> dict[str, Any]:
    """Return a page of ``items``, which are in conversation order. Raises ``ApiError`` for an unknown id."""
    ordered = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        ids = [item["id"] for item in ordered]
        if query.after not in ids:
            raise ApiError(f"there is no item {query.after[:SHOWN]!r} in this list", param="after")
        ordered = ordered[ids.index(query.after) + 1 :]
    data = ordered[: query.limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(ordered) > len(data),
    }


def _item(fields: Item) -> Item:
    kind = fields.get("type", "message")
    item = {**fields, "type": kind, "id": fields.get("id") or f"{PREFIXES[kind]}_{new_id()}", "status": "completed"}
    if kind == "reasoning":
        item.setdefault("summary", [])
    return {**item, "content": _parts(item)} if kind == "message" else item


def _parts(message: Item) -> list[Item]:
    """Return the content of a message as a list of parts."""
    content = message["content"]
    parts = [{"text": content}] if isinstance(content, str) else content
    return [(_output_part if message["role"] == "assistant" else _input_part)(part) for part in parts]


def _input_part(part: Item) -> Item:
    if part.get("type") == IMAGE_PART:
        return {"detail": "auto", **part}
    return {**part, "type": "input_text"}


def _output_part(part: Item) -> Item:
    if part.get("type") == "refusal":
        return part
    return {"annotations": [], "logprobs": [], **part, "type": "output_text"}
