"""The conformance test of deployments names faults of clients, and does not wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from sglang_plug import EngineClient, EngineLaunch
from sglang_plug.testing import check_engine_client
from tests.core.testing.replicas import faulty_clients as faulty

pytestmark = pytest.mark.whole_engine
TIMEOUT = 6.0
"""Seconds after which an expected event counts as missing."""

Make = Callable[[EngineLaunch], EngineClient]


@pytest.mark.planted_bug("deployment")
@pytest.mark.parametrize(
    ("client", "message"),
    [
        (faulty.FinishesTwice, "the last output, and no other, must have finish set"),
        (faulty.ForgetsFields, "tokens that waited came with 0 log-probabilities"),
        (faulty.ForgetsSalt, "a prefix is shared by requests with different salts"),
        (faulty.ForgetsTask, "the task .* was not refused"),
        (faulty.ForgetsLogprobs, "tokens that waited came with 0 log-probabilities"),
        (faulty.ForgetsPromptLogprobs, "a prompt of 4 tokens came with the log-probabilities of 0"),
        (faulty.ForgetsCachedTokens, "the output has 0 cached tokens, the step's statistics"),
        (faulty.AlwaysLength, "does not say that the token .* ended the request"),
        (faulty.ForgetsStatus, "refused with status 400, not 404"),
        (faulty.ForgetsArguments, "'update_weights' with source=.* was refused"),
        (faulty.SwapsReplies, "got the reply of another one"),
        (faulty.TakesDuplicates, "the id of a request in flight was not refused"),
        (faulty.FailsAtOnce, "although the engine serves"),
        (faulty.FailsForNoReason, "failure must say why"),
        (faulty.NoInfo, "start.. returned no 'architecture'"),
    ],
)
def test_what_is_wrong_is_named(client: Make, message: str, model: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_engine_client(client, model=model)


@pytest.mark.planted_bug("deployment")
@pytest.mark.parametrize(
    ("client", "message"),
    [
        (faulty.ShiftsOutputs, "a request for [0-9]+ tokens"),
        (faulty.OneAfterTheOther, "a request for 12 tokens did not return"),
        (faulty.ControlAfterRequests, "the start of a request did not happen"),
        (faulty.TellsOneReader, "a request in flight when kill.. was called did not return"),
        (faulty.ControlHangs, "a control call to an engine that has ended did not return"),
        (faulty.TakesRequestsWhenDead, "a request to an engine that has ended did not return"),
        (faulty.WaitsOnce, "wait_failed.. that ran when kill.. was called did not return"),
        (faulty.NeverFails, "wait_failed.. that ran when kill.. was called did not return"),
        (faulty.DrainsAtClose, "close.. (with a request in flight|of the second client) did not return"),
        (faulty.AbortsOnlyWhenClosed, "the end of a request whose reader was cancelled did not happen"),
        (faulty.ListensLate, "the 64 tokens of a prompt did not happen"),
    ],
)
def test_what_never_happens_is_named(client: Make, message: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_plug.testing.replicas.engine_starts.TIMEOUT_SECONDS", TIMEOUT)
    with pytest.raises(AssertionError, match=message):
        check_engine_client(client, model=model)


@pytest.fixture
def unclosed_clients() -> Iterator[list[EngineClient]]:
    """Clients whose engines are still running."""
    engines = list[EngineClient]()
    yield engines
    for engine in engines:
        asyncio.run(engine.close())


@pytest.mark.planted_bug("deployment")
def test_an_engine_that_stays_is_named(
    unclosed_clients: list[EngineClient], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deploy(launch: EngineLaunch) -> EngineClient:
        client = faulty.NeverCloses(launch)
        unclosed_clients.append(client.inner)
        return client

    monkeypatch.setattr("sglang_plug.testing.replicas.engine_starts.TIMEOUT_SECONDS", TIMEOUT)
    with pytest.raises(AssertionError, match="close.. has returned, and still running is thread engine"):
        check_engine_client(deploy, model=model)
