"""Control calls with a lasting effect are repeated on a new engine, which then serves the same adapters."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import RequestError
from sglang_plug_api.engine_clients.replicas.lasting_calls import LOAD, UNLOAD, UPDATE, Call, LastingCalls

MAX_LOADED = 2
NAMES = st.sampled_from("abcd")
CALLS = st.lists(st.tuples(st.sampled_from((LOAD, UNLOAD)), NAMES, st.sampled_from(("/1", "/2"))), max_size=30)


class Engine:
    """An engine with a limited number of adapters, of which two were configured at the start."""

    def __init__(self) -> None:
        self.adapters = {"a": "/start", "b": "/start"}
        self.weights = "/start"

    async def control(self, name: str, **arguments: Any) -> None:
        if name == UPDATE:
            self.weights = arguments["source"]
        elif name == UNLOAD:
            if self.adapters.pop(arguments["adapter"], None) is None:
                raise RequestError("not loaded")
        elif arguments["adapter"] in self.adapters or len(self.adapters) >= MAX_LOADED:
            raise RequestError("already loaded, or too many are loaded")
        else:
            self.adapters[arguments["adapter"]] = arguments["path"]


def made(kind: str, adapter: str, path: str) -> Call:
    return Call(kind, {"adapter": adapter, **({"path": path} if kind == LOAD else {})})


async def served(engine: Engine, calls: LastingCalls, call: Call) -> None:
    try:
        await engine.control(call.name, **call.arguments)
    except RequestError:
        return
    calls.note(call)


@given(CALLS)
def test_a_new_engine_serves_the_same_adapters(given_calls: list[tuple[str, str, str]]) -> None:
    async def check() -> None:
        engine, restarted, calls = Engine(), Engine(), LastingCalls()
        for kind, adapter, path in given_calls:
            await served(engine, calls, made(kind, adapter, path))
        await calls.repeat(restarted)  # type: ignore[arg-type]
        assert restarted.adapters == engine.adapters

    asyncio.run(check())


async def test_an_unloading_is_undone_by_the_loading_before_it() -> None:
    engine, calls = Engine(), LastingCalls()
    await served(engine, calls, made(UNLOAD, "a", ""))
    load = made(LOAD, "c", "/1")
    await served(engine, calls, load)
    assert calls.undoing(made(UNLOAD, "c", "")) == load
    assert calls.undoing(made(UNLOAD, "b", "")) is None, "only a new engine has it again"
    assert calls.undoing(load) == made(UNLOAD, "c", "")


async def test_the_last_weights_are_repeated() -> None:
    calls, restarted = LastingCalls(), Engine()
    calls.started_with({"checkpoint_path": "/start"})
    for source in ("/new", "/newest"):
        calls.note(Call(UPDATE, {"source": source}))
    await calls.repeat(restarted)  # type: ignore[arg-type]
    assert restarted.weights == "/newest"
