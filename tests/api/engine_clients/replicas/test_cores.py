"""Tests of the division of CPU cores between replicas."""

from __future__ import annotations

import os

import pytest

from sglang_plug_api.engine_clients.replicas.cores import shares_of_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity of processes")


def test_one_replica_has_all_cores() -> None:
    assert shares_of_cores(1) == [()]


@pytest.mark.parametrize("replicas", [2, 3, 200])
def test_shares_are_equal_and_within_what_this_process_has(replicas: int) -> None:
    cores = os.sched_getaffinity(0)
    shares = shares_of_cores(replicas)
    assert len(shares) == replicas
    assert {len(share) for share in shares} == {max(1, len(cores) // replicas)}
    assert {core for share in shares for core in share} <= cores
    if replicas <= len(cores):
        assert len({core for share in shares for core in share}) == sum(map(len, shares))
