"""Engines and ingresses that find each other, and the number of engines. Needs no ray."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from sglang_plug_ray.directory import LEASE, Directory, EngineEntry
from sglang_plug_ray.scaling import TokensPolicy

from sglang_plug import EngineAddress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(id: str, version: str = "one") -> EngineEntry:
    return EngineEntry(id, version, EngineAddress("127.0.0.1", 1, b"key"), frozenset(), False)


async def test_engines_and_clients_of_a_version_find_each_other() -> None:
    directory = Directory(Clock())
    assert await directory.report_engine(entry("a")) == frozenset()
    await directory.report_engine(entry("b", "two"))
    assert [engine.id for engine in await directory.report_client("one", frozenset({b"k"}))] == ["a"]
    assert await directory.report_engine(entry("a")) == {b"k"}
    assert await directory.report_engine(entry("b", "two")) == frozenset()
    await directory.forget_engine("a")
    assert await directory.report_client("one", frozenset()) == ()


async def test_who_reports_no_more_is_forgotten() -> None:
    clock = Clock()
    directory = Directory(clock)
    await directory.report_engine(entry("a"))
    await directory.report_client("one", frozenset({b"old"}))
    clock.now = LEASE / 2
    assert len(await directory.report_client("one", frozenset({b"new"}))) == 1
    clock.now = LEASE
    assert await directory.report_client("one", frozenset()) == ()
    assert await directory.report_engine(entry("a")) == {b"new"}


def engines(metrics: Mapping[str, Mapping[str, float]] | None, target: int = 2) -> int:
    context: Any = SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=target, policy_state={"kept": 1})
    number, state = TokensPolicy(tokens_per_engine=100)(context)
    assert state == {"kept": 1}
    return number


def test_the_number_of_engines_follows_the_tokens() -> None:
    assert engines({"tokens": {"a": 0, "b": 0}}) == 1
    assert engines({"tokens": {"a": 90, "b": 60}}) == 2
    assert engines({"tokens": {"a": 190, "b": 111}}) == 4
    assert engines({}, target=3) == engines(None, target=3) == 3  # nothing is known yet
