"""Step extensions in the watchdog's thread."""

from __future__ import annotations

import pytest

from sglang_plug import BlockingRequest, StepExtension, WatchdogPhase
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.watchdog import find_blocking_request, run_checks

BLOCKING = BlockingRequest("a", "the grammar of request 'a'", "too slow")


class Watches(StepExtension, WatchdogPhase):
    def __init__(self, blocking: BlockingRequest | None = None, *, fails: bool = False) -> None:
        self.blocking, self.fails, self.looked = blocking, fails, 0

    def check_step(self) -> None:
        self.looked += 1
        if self.fails:
            raise KeyError("check_step")

    def blocking_request(self) -> BlockingRequest | None:
        if self.fails:
            raise KeyError("blocking_request")
        return self.blocking


def test_all_extensions_look_even_if_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    watches = [Watches(fails=True), Watches()]
    run_checks(extension_points({str(number): watcher for number, watcher in enumerate(watches)}).watchdog)
    assert [watcher.looked for watcher in watches] == [1, 1]
    assert "a step extension failed in the watchdog's thread" in caplog.text


def test_the_first_known_request_is_blamed() -> None:
    watches = {"fails": Watches(fails=True), "idle": Watches(), "knows": Watches(BLOCKING)}
    assert find_blocking_request(extension_points(watches).watchdog) == BLOCKING
    assert find_blocking_request(extension_points({"idle": Watches()}).watchdog) is None
    assert find_blocking_request(extension_points({}).watchdog) is None
