"""The answers of several replicas to a control call as the answer of one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_plug import ConfigError, ReplicaReply

SUMMED = ("running", "waiting", "paused", "max_running_requests", "max_queued_requests")
MINIMA = ("max_total_tokens",)
"""Facts that limit a single request, which one replica serves."""
OF_REPLICA = ("device", "slots", "step_time", "kv_stores", *SUMMED, *MINIMA)
SAME = ("architecture", "vocab_size", "context_length", "tasks", "fingerprint")
"""Facts that the API process relies on, whichever replica serves a request."""
STATES = "replica_states"
"""Key of the facts about each replica, as a list."""


def combined(name: str, replies: Sequence[ReplicaReply]) -> Any:
    """Return one answer to the control call ``name``; ``replies`` are those of all replicas that serve."""
    return combined_info(replies) if name == "info" else _merged([reply.value for reply in replies])


def combined_info(replies: Sequence[ReplicaReply]) -> dict[str, Any]:
    """Return the description of all replicas together: sums of their loads, and what each of them has of its own.

    Other facts are those of the first replica; where the others differ, the state of each replica has them, too.
    """
    infos = [reply.value for reply in replies]
    whole: dict[str, Any] = dict(infos[0])
    whole |= {key: sum(info[key] for info in infos) for key in SUMMED if key in whole}
    whole |= {key: min(info[key] for info in infos) for key in MINIMA if key in whole}
    if "slots" in whole:
        whole["slots"] = {key: sum(info["slots"][key] for info in infos) for key in whole["slots"]}
    differing = {key: None for info in infos for key in info if any(other.get(key) != info[key] for other in infos)}
    whole[STATES] = [
        {"dp_rank": reply.replica, **{key: reply.value[key] for key in (*OF_REPLICA, *differing) if key in reply.value}}
        for reply in replies
    ]
    return whole


def check_alike(infos: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``ConfigError`` if replicas differ in what the API process takes for the same."""
    for number, info in enumerate(infos[1:], 1):
        check_same(infos[0], "replica 0", info, f"replica {number}")


def check_same(first: Mapping[str, Any], first_name: str, other: Mapping[str, Any], other_name: str) -> None:
    """Raise ``ConfigError`` if two engines, described by their ``info``, differ in what must be the same."""
    for key in SAME:
        if other.get(key) != first.get(key):
            raise ConfigError(
                f"the engines of a server must be alike, but {key!r} is {first.get(key)!r} of {first_name} and "
                f"{other.get(key)!r} of {other_name}"
            )


def _merged(values: Sequence[Any]) -> Any:
    """Merge answers: mappings key by key, lists one after the other, truth values if all are true; else the first."""
    first = values[0]
    if isinstance(first, bool) and all(isinstance(value, bool) for value in values):
        return all(values)
    if isinstance(first, Mapping) and all(isinstance(value, Mapping) for value in values):
        worst = next((value for value in values if value.get("success") is False), first)
        return {
            key: _merged([value[key] for value in values if key in value])
            if not isinstance(worst[key], str)
            else worst[key]
            for key in worst
        }
    if isinstance(first, list) and all(isinstance(value, list) for value in values):
        return first if all(value == first for value in values) else [item for value in values for item in value]
    return first
