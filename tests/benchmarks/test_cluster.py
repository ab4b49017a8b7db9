"""Tests of the simulated cluster: prefix hits, even loads, and no lost request."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.cluster import POLICIES, Cluster, Outcome, sessions, show, write_plot


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {name: Cluster(name, 40, 65536).run(sessions(150, 8, 8.0, 3), 3) for name in POLICIES}


def test_every_turn_is_served(outcomes: dict[str, Outcome]) -> None:
    expected = sum(session.turns for _, session in sessions(150, 8, 8.0, 3))
    assert {outcome.requests for outcome in outcomes.values()} == {expected}
    assert all(outcome.first_token_p50 > 0 for outcome in outcomes.values())


def test_affinity_finds_nearly_all_that_was_computed_and_the_others_find_little(outcomes: dict[str, Outcome]) -> None:
    affinity = outcomes["prefix-affinity"]
    assert affinity.hit_rate > 0.8 * affinity.possible
    assert all(outcomes[name].hit_rate < 0.5 * affinity.hit_rate for name in ("round-robin", "least-tokens"))
    assert affinity.first_token_p50 < outcomes["round-robin"].first_token_p50


def test_small_caches_forget() -> None:
    small = Cluster("prefix-affinity", 2, 2048).run(sessions(60, 8, 1.0, 3), 3)
    assert small.hit_rate < 0.6 * small.possible


def test_the_table_and_the_figure_have_every_policy(outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    assert all(name in show([*outcomes.values()]) for name in POLICIES)
    write_plot([*outcomes.values()], tmp_path)
    texts = ElementTree.parse(tmp_path / "first-token.svg").iter("{http://www.w3.org/2000/svg}text")
    assert set(POLICIES) <= {element.text for element in texts}
