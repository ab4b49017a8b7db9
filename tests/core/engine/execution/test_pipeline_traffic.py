"""Each request in random traffic gets the output that it would get alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import Finish
from sglang_plug.engine.messages.api_messages import Abort, Control
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.policies import FirstCome, Priority
from tests.core.engine.scheduling.scheduler_bench import VOCABULARY

from .pipeline_bench import Bench, expected, follow, under_grammar

RequestSpec = tuple[list[int], int, tuple[int, ...]]
"""The prompt, the maximum number of new tokens, and the stop tokens."""


def traffic(bench: Bench, draw: Callable[..., Any]) -> tuple[dict[str, RequestSpec], set[str]]:
    """Submit, abort and fail random requests in ``bench``; return the requests by id, and the ids that may be
    aborted."""
    requests: dict[str, RequestSpec] = {}
    aborted = set[str]()
    for number in range(draw(st.integers(1, 25))):
        match draw(st.sampled_from(["submit", "submit", "step", "steps", "abort", "control", "fail"])):
            case "submit":
                id = str(number)
                prompt = [1] * draw(st.integers(1, 12)) + [draw(st.integers(0, 2))]
                count, stops = draw(st.integers(1, 20)), draw(st.sampled_from([(), tuple(range(0, VOCABULARY, 6))]))
                bound = draw(st.integers(0, 2)) == 0
                requests[id] = prompt, count, () if bound else stops
                bench.submit(id, prompt, count, stops=stops, priority=draw(st.integers(0, 2)), constrained=bound)
            case "abort" if requests:
                id = draw(st.sampled_from(sorted(requests)))
                aborted.add(id)
                bench.inbox.messages.append(Abort((id,)))
            case "control":
                bench.inbox.messages.append(
                    Control(number, draw(st.sampled_from(["check", "info", "flush_cache"])), {})
                )
            case "fail" if requests:
                id = draw(st.sampled_from(sorted(requests)))
                bench.device.bad_rows |= {(bench.device.launches + more, id) for more in range(1, 4)}
            case "step" | "steps" as how if bench.inbox.messages or bench.scheduler.busy:
                for _ in range(1 if how == "step" else 6):
                    if bench.inbox.messages or bench.scheduler.busy:
                        bench.step()
            case _:
                pass
    return requests, aborted


def check(bench: Bench, id: str, prompt: list[int], limit: int, stops: tuple[int, ...], aborted: bool) -> None:
    """Check that a request got the output that it would get alone, or a prefix of it with an abort or an error."""
    bound = id in bench.constrained
    whole = under_grammar(prompt, limit) if bound else expected(prompt, limit, stops)
    tokens, end = bench.tokens(id), bench.end(id)
    if end.reason in {"abort", "error"}:
        assert (end.reason == "abort") == (end.message == "") and tokens == whole[: len(tokens)]
        assert aborted or end.message == "not finite"
        return
    assert tokens == whole
    last = follow(prompt, limit)[-1].finish if bound else None
    stop = Finish("stop", matched=whole[-1]) if whole[-1] in stops else Finish("length")
    assert end == (last or stop)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_random_traffic(data: st.DataObject) -> None:
    """The traffic mixes arrivals, aborts, stop tokens, limits, retractions, shared prefixes, control calls and failing
    rows."""
    draw = data.draw
    overlap = draw(st.sampled_from([True, True, False]))
    bench = Bench(
        overlap=overlap,
        capacity=draw(st.integers(24, 120)),
        page_size=draw(st.sampled_from([1, 4])),
        cache=draw(st.sampled_from([RadixCache, NoCache])),
        policy=draw(st.sampled_from([FirstCome, Priority])),
        chunk_size=draw(st.sampled_from([4, 16, 64])),
        max_running=draw(st.integers(1, 6)),
        states=draw(st.sampled_from([None, 1, 3, 20])),
    )
    requests, aborted = traffic(bench, draw)
    bench.finish()
    for id, (prompt, count, stops) in requests.items():
        check(bench, id, prompt, min(count, bench.scheduler.pool.capacity - len(prompt)), stops, id in aborted)
    bench.scheduler.flush()
    assert bench.scheduler.accounts()["free"] == bench.scheduler.pool.capacity
