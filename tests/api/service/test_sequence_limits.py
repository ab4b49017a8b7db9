"""Requests with more sequences than the queue can hold are refused even if the queue is empty."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug import EngineConfig
from sglang_plug.config import ScheduleOptions
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.sequence_limits import SequenceLimits

NO_OTHER_LIMIT = 1000


def limits(running: int | None, *, states: int = 1, **schedule: Any) -> SequenceLimits:
    config = ServerConfig(
        engine=EngineConfig(schedule=ScheduleOptions(**schedule)), max_sequences_per_request=NO_OTHER_LIMIT
    )
    info: dict[str, Any] = {} if running is None else {"max_running_requests": running}
    return SequenceLimits.of(config, {**info, "replica_states": [{}] * states} if states > 1 else info)


def refusal(limits: SequenceLimits, total: int, replicas: int = 1) -> ApiError:
    with pytest.raises(ApiError) as caught:
        limits.check(total, replicas)
    assert (caught.value.status, caught.value.param) == (400, "n")
    return caught.value


def test_as_many_as_run_and_wait() -> None:
    queue = limits(2, max_queued_requests=4)
    queue.check(6, 1)
    assert "--max-queued-requests" in str(refusal(queue, 7))


def test_as_many_as_one_caller_may_have_waiting_when_they_arrive_together() -> None:
    queue = limits(8, max_queued_per_caller=8)
    queue.check(8, 1)
    assert "--max-queued-per-caller" in str(refusal(queue, 9))


def test_every_replica_has_a_queue() -> None:
    queue = limits(4, states=2, max_queued_requests=4, max_queued_per_caller=5)
    queue.check(10, 2)
    assert "--max-queued-per-caller" in str(refusal(queue, 11, 2))
    queue.check(12, 3)  # one was added
    assert "--max-queued-requests" in str(refusal(limits(4, states=2, max_queued_requests=4), 13, 2))


def test_replicas_that_do_not_serve_now_count() -> None:
    limits(4, states=2, max_queued_requests=4).check(12, 0)


def test_an_engine_that_does_not_tell_how_many_run_has_the_other_limits() -> None:
    queue = limits(None, max_queued_requests=1)
    queue.check(NO_OTHER_LIMIT, 1)
    assert f"the maximum is {NO_OTHER_LIMIT}" in str(refusal(queue, NO_OTHER_LIMIT + 1))


def test_the_field_of_the_prompts_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        limits(2, max_queued_requests=4).check_queue(7, 1, "input")
    assert caught.value.param == "input"
