"""Fixed-point computations over the reference graph of a grammar's rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

T = TypeVar("T")
Uses = Mapping[str, Collection[str]]
"""The rules that each rule refers to."""


def settled(uses: Uses, start: T, value: Callable[[str, Mapping[str, T]], T]) -> dict[str, T]:
    """Compute the ``value`` of each rule, which depends on the values of the rules that it uses.

    Args:
        uses: every rule that is used is a key, too.
        start: of all rules before anything is known.
        value: of one rule, given what is known of all. As these change in one direction, so must it, and not for ever.
    """
    users = reverse(uses)
    result = dict.fromkeys(uses, start)
    stale = dict.fromkeys(uses)
    order = deque(stale)
    while order:
        name = order.popleft()
        del stale[name]
        new = value(name, result)
        if new == result[name]:
            continue
        result[name] = new
        for user in users[name]:
            if user not in stale:
                stale[user] = None
                order.append(user)
    return result


def reverse(uses: Uses) -> dict[str, list[str]]:
    """Return the rules that refer to each rule."""
    users: dict[str, list[str]] = {name: [] for name in uses}
    for name, used in uses.items():
        for item in used:
            users[item].append(name)
    return users


def leading_to_loops(uses: Uses) -> set[str]:
    """Return recursive rules and the rules that lead to them."""
    leads = settled(uses, True, lambda name, leading: any(leading[used] for used in uses[name]))
    return {name for name, is_so in leads.items() if is_so}
