"""Conversion of streams to a form that does not depend on how they are split into events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

Event = dict[str, Any]
DELTAS = ("response.output_text.delta", "response.function_call_arguments.delta", "response.reasoning_text.delta")


def coarse(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the events sorted by output, in which consecutive events of the same kind are joined."""
    if "events" not in record:
        return record
    incremental = '"incremental": true' in record.get("request", "")
    events: list[Event] = []
    for event in _by_output(map(_parsed, record["events"])):
        if events and _joinable(events[-1], event):
            events[-1] = _joined(events[-1], event, incremental)
        else:
            events.append(event)
    return {**record, "events": [_numberless(event) for event in events]}


def _by_output(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events, with neighbouring events of several outputs sorted by output."""
    for single, run in groupby(events, key=lambda event: _output(event) is not None):
        group = list(run)
        yield from sorted(group, key=lambda event: _output(event) or 0) if single else group


def _output(event: Event) -> int | None:
    """Return the index of the output that an event belongs to."""
    data = event.get("data", {})
    choice = _choice(event) or (data if "meta_info" in data else None)
    return None if choice is None else int(choice.get("index") or 0)


def _parsed(text: str) -> Event:
    head, _, data = text.rpartition("data: ")
    try:
        value = json.loads(data)
    except ValueError:
        return {"text": text}
    return {"head": head, "data": value} if isinstance(value, dict) else {"text": text}


def _choice(event: Event) -> Any:
    """Return the only choice of a chunk of a chat or completion, or ``None``."""
    choices = event.get("data", {}).get("choices")
    return choices[0] if isinstance(choices, list) and len(choices) == 1 else None


def _joinable(event: Event, other: Event) -> bool:
    if "data" not in event or "data" not in other:
        return False
    first, second = event["data"], other["data"]
    if "meta_info" in first and "meta_info" in second:
        return first.get("index") == second.get("index") and first["meta_info"]["finish_reason"] is None
    if first.get("type") in DELTAS:
        return _key(first, "type", "item_id", "content_index") == _key(second, "type", "item_id", "content_index")
    before, after = _choice(event), _choice(other)
    if before is None or after is None or before["index"] != after["index"] or before["finish_reason"]:
        return False
    if "text" in before:
        return "text" in after
    first_delta, second_delta = _without_nulls(before["delta"]), _without_nulls(after["delta"])
    return _texts(first_delta) and _texts(second_delta) and first_delta.keys() == second_delta.keys()


def _key(data: Event, *names: str) -> list[Any]:
    return [data.get(name) for name in names]


def _without_nulls(delta: Event) -> Event:
    """Return a delta without the fields that are null."""
    return {key: value for key, value in delta.items() if value is not None}


def _texts(delta: Event) -> bool:
    """Return True if a delta has only text or the arguments of one call."""
    calls = delta.get("tool_calls")
    if calls is not None:
        return len(delta) == 1 and len(calls) == 1 and not calls[0].get("id")
    return bool(delta) and delta.keys() <= {"content", "reasoning_content"}


def _joined(event: Event, other: Event, incremental: bool) -> Event:
    first, second = event["data"], other["data"]
    if "meta_info" in first and not incremental:  # each event has all that came before
        return other
    if "meta_info" in first:
        return {**other, "data": {**second, **{key: first[key] + second[key] for key in ("text", "output_ids")}}}
    if "delta" in first:
        joined = {"delta": first["delta"] + second["delta"], "logprobs": [*_list(first), *_list(second)]}
        return {**event, "data": {**second, **joined}}
    before, after = _choice(event), _choice(other)
    choice = {**after, "logprobs": _joined_logprobs(before.get("logprobs"), after.get("logprobs"))}
    if "text" in before:
        choice["text"] = before["text"] + after["text"]
    else:
        nulls = dict.fromkeys(key for key, value in after["delta"].items() if value is None)
        choice["delta"] = {**_joined_delta(_without_nulls(before["delta"]), _without_nulls(after["delta"])), **nulls}
    return {**event, "data": {**second, "choices": [choice]}}


def _list(data: Event) -> Iterable[Any]:
    logprobs = data.get("logprobs")
    return logprobs if isinstance(logprobs, list) else []


def _joined_delta(delta: Event, other: Event) -> Event:
    if "tool_calls" in delta:
        (first,), (second,) = delta["tool_calls"], other["tool_calls"]
        if first["index"] != second["index"]:
            return {"tool_calls": [first, second]}
        arguments = first["function"].get("arguments", "") + second["function"].get("arguments", "")
        return {"tool_calls": [{**first, "function": {**first["function"], "arguments": arguments}}]}
    return {key: delta[key] + other[key] for key in delta}


def _joined_logprobs(logprobs: Any, other: Any) -> Any:
    if not isinstance(logprobs, dict) or not isinstance(other, dict):
        return logprobs or other
    return {
        key: [*(logprobs[key] or []), *(other.get(key) or [])] if isinstance(logprobs[key], list) else logprobs[key]
        for key in logprobs
    }


def _numberless(event: Event) -> str:
    data = event.get("data")
    if data is None:
        return str(event["text"])
    kept = {key: value for key, value in data.items() if key != "sequence_number"}
    return str(event["head"]) + "data: " + json.dumps(kept, ensure_ascii=False)
