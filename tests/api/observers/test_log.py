"""Tests of the log lines for prefill and decode batches."""

from __future__ import annotations

import logging
from dataclasses import MISSING, fields
from typing import Any

import pytest

from sglang_plug import StepStats
from sglang_plug_api.observers.log import LogObserver


def step(**changes: Any) -> StepStats:
    blank: dict[str, Any] = {field.name: 0 for field in fields(StepStats) if field.default is MISSING}
    return StepStats(**{**blank, "capacity": 100, **changes})


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_every_prefill_is_a_line(lines: Any) -> None:
    observer = LogObserver()
    prompts = {"prefill_sequences": 2, "prefill_tokens": 30, "cached_tokens": 5, "decode_sequences": 1}
    observer.on_step(step(**prompts, used_slots=25, running=3, waiting=1))
    assert lines() == [
        "Prefill batch, #new-seq: 2, #new-token: 30, #cached-token: 5, token usage: 0.25, #running-req: 1, "
        "#queue-req: 1"
    ]


def test_decoding_is_a_line_every_so_many_steps(lines: Any) -> None:
    observer = LogObserver()
    observer.on_start({"log_interval": 3})
    for second in range(1, 7):
        observer.on_step(step(decode_sequences=4, running=4, used_slots=50, time=float(second), seconds=1.0))
    assert lines() == [
        "Decode batch, #running-req: 4, #token: 50, token usage: 0.50, gen throughput (token/s): 4.00, #queue-req: 0",
        "Decode batch, #running-req: 4, #token: 50, token usage: 0.50, gen throughput (token/s): 4.00, #queue-req: 0",
    ]


def test_drafts_that_came_true_are_tokens_and_said(lines: Any) -> None:
    observer = LogObserver()
    observer.on_start({"log_interval": 2})
    blank = {"decode_sequences": 2, "running": 2, "used_slots": 50, "seconds": 1.0}
    for second, drafts in enumerate([(8, 5), (0, 0), (3, 0), (0, 0), (0, 0), (0, 0)], start=1):
        drafted, accepted = drafts
        observer.on_step(step(**blank, time=float(second), drafted_tokens=drafted, accepted_tokens=accepted))
    messages = [line.split("token usage: 0.50, ")[1] for line in lines()]
    assert messages == [
        "accept len: 2.25, gen throughput (token/s): 4.50, #queue-req: 0",
        "accept len: 1.00, gen throughput (token/s): 2.00, #queue-req: 0",
        "gen throughput (token/s): 2.00, #queue-req: 0",
    ]


def test_a_step_that_did_nothing_says_nothing(lines: Any) -> None:
    observer = LogObserver()
    observer.on_start({"log_interval": 0})
    observer.on_step(step(capacity=0))
    assert lines() == []
    observer.on_step(step(decode_sequences=1, capacity=0))
    assert len(lines()) == 1


def test_each_replica_has_lines_of_its_own(lines: Any) -> None:
    observer = LogObserver()
    observer.on_start({"log_interval": 2, "replica_states": [{}, {}]})
    for second in (1.0, 2.0):
        observer.on_step(step(decode_sequences=4, running=4, time=second, seconds=1.0))
        observer.on_step(step(decode_sequences=1, running=1, time=second, seconds=1.0, replica=1))
    observer.on_step(step(prefill_sequences=1, replica=1))
    starts = [line.split(",")[0] for line in lines()]
    assert starts == ["DP0 Decode batch", "DP1 Decode batch", "DP1 Prefill batch"]
    assert ["throughput (token/s): 4.00" in lines()[0], "throughput (token/s): 1.00" in lines()[1]] == [True, True]
