"""Messages between the API and the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sglang_plug import Finish, LogprobOptions, Output, Request, SamplingParams, StepStats, TokenLogprob
from sglang_plug.engine.messages.api_messages import (
    Abort,
    Close,
    Control,
    Failed,
    FromEngine,
    Pause,
    Ready,
    Reply,
    Resume,
    StepOutputs,
    Submit,
    ToEngine,
    check_sendable,
)

REQUEST = Request(
    id="a",
    tokens=(1, 2),
    params=SamplingParams(max_new_tokens=3, logit_bias={5: -1.0}, stop_token_ids=(7,)),
    logprobs=LogprobOptions(start=0, top=2),
)
STATS = StepStats(
    time=1.0,
    seconds=0.5,
    prefill_sequences=1,
    prefill_tokens=2,
    cached_tokens=3,
    decode_sequences=4,
    running=5,
    waiting=6,
    used_slots=7,
    cached_slots=8,
    free_slots=9,
    capacity=24,
    retracted=0,
    queue_seconds=(0.25,),
)
OUTPUT = Output(id="a", tokens=(5,), finish=Finish("stop", matched=5), logprobs=(TokenLogprob(5, -0.5),))


@pytest.mark.parametrize(
    "message",
    [
        Submit(REQUEST),
        Abort(("a", "b")),
        Pause(("a",)),
        Resume(("a",)),
        Control(1, "info", {"x": [1, None]}),
        Close(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_the_engine_gets_is_what_was_sent(message: ToEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToEngine) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready({"vocab_size": 3}),
        StepOutputs([OUTPUT]),
        StepOutputs([], STATS),
        Reply(1, {"success": True}),
        Reply(2, error="no such call", status=404),
        Failed("no memory", configuration=True),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_the_engine_sends_is_what_arrives(message: FromEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromEngine) == message


@pytest.mark.parametrize(
    ("value", "expected"),
    [({"path": Path("x")}, Any), (2**70, Any), (object(), Any), ({"number": "text"}, dict[str, int])],
)
def test_values_that_no_message_can_contain_are_refused(value: object, expected: Any) -> None:
    with pytest.raises(TypeError):
        check_sendable(value, expected)


def test_plain_values_can_be_sent() -> None:
    check_sendable({"a": [1, 2.5, None, "x", b"y", True]})
    check_sendable({"number": 1}, dict[str, int])
