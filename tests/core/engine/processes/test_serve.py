"""The messages about an engine's start and end, in a process and in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from sglang_plug.config import ConfigError
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages.api_messages import Failed, FromEngine, Ready
from sglang_plug.engine.processes.serve import serve
from sglang_plug.plugins.lifecycle import ComponentLifecycle

Order = list[object]


class Engine:
    """An engine that returns at once, or raises ``error`` while it serves."""

    info = {"model_path": "demo"}

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    def describe(self, error: BaseException) -> str:
        return f"the engine says: {error}"

    def run(self, begin: Callable[[], None]) -> None:
        begin()
        if self._error is not None:
            raise self._error


class Lifecycle:
    def __init__(self, order: Order) -> None:
        self._order = order

    def start(self, info: Any) -> None:
        self._order.append(info)


def served(build: Callable[[Order], Engine]) -> tuple[Failed | None, Order]:
    order: Order = []

    def built() -> tuple[EngineLoop, ComponentLifecycle]:
        return cast(Any, (build(order), Lifecycle(order)))

    def send(message: FromEngine) -> None:
        order.append(message)

    return serve(built, send, before_ready=lambda: order.append("all has started")), order


def test_an_engine_is_ready_once_all_has_started() -> None:
    failed, order = served(lambda order: Engine())
    assert failed is None and order == [Engine.info, "all has started", Ready(Engine.info)]


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit("broken")])
def test_an_error_while_serving_is_described_by_the_engine(error: BaseException) -> None:
    failed, order = served(lambda order: Engine(error))
    assert failed == order[-1] == Failed("the engine says: broken")


def test_an_engine_that_cannot_be_built_is_no_configuration_error_unless_it_says_so() -> None:
    def build(error: Exception) -> Callable[[Order], Engine]:
        def fail(order: Order) -> Engine:
            raise error

        return fail

    for error, expected in (
        (KeyError("x"), Failed("KeyError('x')")),
        (ConfigError("no such model"), Failed("no such model", configuration=True)),
    ):
        failed, order = served(build(error))
        assert failed == expected and order == [expected]
