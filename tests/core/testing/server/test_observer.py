from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from sglang_plug import Observer, PluginError, Plugins, RequestEvent, StepStats
from sglang_plug.testing import check_observer


@pytest.mark.parametrize("name", Plugins.discover().names("observer"))
def test_built_in_observers_pass(name: str) -> None:
    check_observer(name)


class Counting(Observer):
    """A correct observer, which counts the tokens of requests in flight."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.total = 0

    def on_tokens(self, request: str, tokens: int, time: float) -> None:
        self.tokens[request] = self.tokens.get(request, 0) + tokens

    def on_request(self, event: RequestEvent) -> None:
        self.total += self.tokens.pop(event.id, 0)


def test_a_correct_observer_passes() -> None:
    check_observer(Counting)


class Hoarding(Counting):
    def on_request(self, event: RequestEvent) -> None:
        self.total += self.tokens[event.id] if event.first_token else 0
        self.tokens[event.id] = 0


class ExpectsTokens(Counting):
    def on_request(self, event: RequestEvent) -> None:
        self.total += self.tokens.pop(event.id)


class ExpectsFirstToken(Counting):
    def on_request(self, event: RequestEvent) -> None:
        self.total += int(event.first_token - event.arrived)  # type: ignore[operator]
        self.tokens.pop(event.id, 0)


class DividesBySeconds(Observer):
    def on_step(self, stats: StepStats) -> None:
        self.rate = stats.decode_sequences / stats.seconds


class DividesByPrompts(Observer):
    def on_step(self, stats: StepStats) -> None:
        self.mean = sum(stats.queue_seconds) / len(stats.queue_seconds)


class Waiting(Observer):
    def on_step(self, stats: StepStats) -> None:
        time.sleep(0.06)


class SlowlyWriting(Observer):
    """An observer that takes 0.2 seconds for each request."""

    def on_request(self, event: RequestEvent) -> None:
        time.sleep(0.2)


class Asynchronous(Observer):
    async def on_tokens(self, request: str, tokens: int, time: float) -> None:  # type: ignore[override]
        self.tokens = tokens


class Answering(Observer):
    def on_request(self, event: RequestEvent) -> Any:  # type: ignore[override]
        return event


class StopsOnlyOnce(Observer):
    def on_start(self, info: Mapping[str, Any]) -> None:
        self.started = True

    def on_stop(self) -> None:
        assert self.started


class Sharing(Counting):
    known: ClassVar[set[str]] = set()

    def on_start(self, info: Mapping[str, Any]) -> None:
        if self.known:
            raise RuntimeError("started already")
        self.known.add(str(info["model_path"]))


class ChangesStatistics(Observer):
    def on_step(self, stats: StepStats) -> None:
        stats.running += 1


class HidesTheKey(Observer):
    def on_start(self, info: Mapping[str, Any]) -> None:
        assert isinstance(info, dict)
        info.pop("api_key")


@pytest.mark.planted_bug("observer")
@pytest.mark.parametrize(
    ("observer", "message"),
    [
        (Hoarding, "keeps .* bytes of each request that has ended"),
        (ExpectsTokens, r"on_request\(\) raised KeyError"),
        (ExpectsFirstToken, r"on_request\(\) raised TypeError"),
        (DividesBySeconds, r"on_step\(\) raised ZeroDivisionError"),
        (DividesByPrompts, r"on_step\(\) raised ZeroDivisionError"),
        (Asynchronous, r"on_tokens\(\) is async"),
        (Answering, r"on_request\(\) returned RequestEvent"),
        (StopsOnlyOnce, r"on_stop\(\) raised AttributeError"),
        (Sharing, r"on_start\(\) raised RuntimeError: started already"),
        (Waiting, r"on_step\(\) takes 0.0. s, in which the server answers nobody"),
        (SlowlyWriting, r"on_request\(\) takes 0.2. s, in which the server answers nobody"),
        (object, "object is not an Observer"),
        (ChangesStatistics, r"on_step\(\) changed the statistics"),
        (HidesTheKey, r"on_start\(\) changed the facts"),
    ],
)
def test_planted_bugs_are_named(observer: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_observer(observer)


def test_a_name_that_nobody_declares() -> None:
    with pytest.raises(PluginError, match="no observer named 'nobody'"):
        check_observer("nobody")
