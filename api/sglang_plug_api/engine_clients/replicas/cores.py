"""The share of this machine's CPU cores that each replica computes with."""

from __future__ import annotations

import os


def shares_of_cores(replicas: int) -> list[tuple[int, ...]]:
    """Return the cores of each replica: equal shares of those that this process may use.

    Shares overlap only if there are fewer cores than replicas. All are empty, which means any core, if there is one
    replica, or if the system does not let a process choose.
    """
    if replicas == 1 or not hasattr(os, "sched_setaffinity"):
        return [()] * replicas
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // replicas
    if not share:
        return [(cores[number % len(cores)],) for number in range(replicas)]
    return [tuple(cores[number * share : (number + 1) * share]) for number in range(replicas)]
