"""What can be known of a grammar's rules only from each other: which use which, round and round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

T = TypeVar("T")
Uses = Mapping[str, Collection[str]]
"""For each rule the rules that it refers to."""


def settled(uses: Uses, start: T, value: Callable[[str, Mapping[str, T]], T]) -> dict[str, T]:
    """For each rule its ``value``, which depends on the values of the rules that it uses.

    Args:
        uses: every rule that is used is a key, too.
        start: of all rules before anything is known.
        value: of one rule, given what is known of all. As these change in one direction, so must it, and not for ever.
    """
    users = reverse(uses)
    found = dict.fromkeys(uses, start)
    stale = dict.fromkeys(uses)
    order = deque(stale)
    while order:
        name = order.popleft()
        del stale[name]
        new = value(name, found)
        if new == found[name]:
            continue
        found[name] = new
        for user in users[name]:
            if user not in stale:
                stale[user] = None
                order.append(user)
    return found


def reverse(uses: Uses) -> dict[str, list[str]]:
    """For each rule those that refer to it."""
    users: dict[str, list[str]] = {name: [] for name in uses}
    for name, used in uses.items():
        for one in used:
            users[one].append(name)
    return users


def leading_to_loops(uses: Uses) -> set[str]:
    """Rules that lead to themselves, and those that lead there."""
    leads = settled(uses, True, lambda name, found: any(found[used] for used in uses[name]))
    return {name for name, is_so in leads.items() if is_so}
