"""Tests of the reports about requests that observers receive."""

from __future__ import annotations

import logging

import pytest

from sglang_plug import Observer, RequestEvent
from sglang_plug_api.observers.request_reports import JobReport, RequestReports
from sglang_plug_api.service.request_context import RequestContext


class Recorder(Observer):
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.events: list[RequestEvent] = []

    def on_tokens(self, request: str, tokens: int, time: float) -> None:
        assert request == "one"
        self.tokens.append(tokens)

    def on_request(self, event: RequestEvent) -> None:
        self.events.append(event)


def report(recorder: Recorder, *, log: bool = False, deadline: float | None = None) -> JobReport:
    reports = RequestReports({"recorder": recorder}, log=log)
    return JobReport(reports, id="one", request="all", prompt_tokens=5, arrived=1.0, deadline=deadline)


def test_tokens_that_are_computed_again_are_reported_once() -> None:
    recorder = Recorder()
    job = report(recorder)
    for tokens in (0, 2, 3):
        job.progress(tokens)
    job.restart()
    for tokens in (2, 4, 7):
        job.progress(tokens)
    assert recorder.tokens == [0, 2, 1, 0, 1, 3]


def test_the_end_of_a_job_is_one_event() -> None:
    recorder = Recorder()
    job = report(recorder, deadline=2.0)
    job.progress(3)
    job.end("stop", 3, 4, 0)
    (event,) = recorder.events
    assert (event.id, event.request, event.reason) == ("one", "all", "stop")
    assert (event.prompt_tokens, event.cached_tokens, event.output_tokens) == (5, 4, 3)
    assert event.first_token is not None and event.arrived < event.first_token <= event.finished
    assert event.deadline == "missed"


def test_a_job_without_output_was_aborted() -> None:
    recorder = Recorder()
    report(recorder).end("", 0, 0, 503)
    assert [(event.reason, event.first_token) for event in recorder.events] == [("abort", None)]


def test_a_request_that_came_too_late_is_reported() -> None:
    recorder = Recorder()
    RequestReports({"recorder": recorder}, log=True).late(RequestContext(deadline_ms=5, received=7.0))
    assert [(event.arrived, event.deadline) for event in recorder.events] == [(7.0, "refused")]


@pytest.mark.parametrize("log", [False, True])
def test_the_log_has_the_ends_of_requests_if_it_should(log: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        report(Recorder(), log=log).end("stop", 0, 0, 0)
    assert ("Request RequestEvent(id='one'" in caplog.text) is log
