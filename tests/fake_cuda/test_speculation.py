"""Drafts on a device that computes by itself: nothing waits for it, graphs and overlap stay for steps without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import Output
from tests.core.engine.drafting_bench import speculation
from tests.core.engine.test_speculation_engine import knowing
from tests.fake_cuda.engine import Engine
from tests.fake_cuda.tensors import clock
from tests.fake_cuda.test_engine import submit_all

Tiny = Callable[[str], Any]


def bare(output: Output) -> tuple[object, ...]:
    return output.tokens, output.finish, [one.token for one in output.logprobs]


def prompts_of(engine: Engine) -> dict[str, list[int]]:
    return {one.request.id: list(one.request.tokens) for one in engine.messages}  # type: ignore[union-attr]


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize("family", ["llama-3.2-1b", "qwen3-moe", "deepseek-v3", "gemma-3-1b", "gpt2"])
def test_outputs_are_the_same_with_drafts(tiny_model: Tiny, family: str) -> None:
    path = tiny_model(family).path
    plain, engine = (Engine(path, cuda_graph_max_bs=4) for _ in range(2))
    submit_all(plain)
    prompts = prompts_of(plain)
    plain.finish()
    known = [[*prompts[id], *output.tokens] for id, output in plain.outputs.items()]
    engine.loop.scheduler.speculation, drafter = speculation(
        knowing(known, 0.3, 100), vocabulary=engine.loop.info["vocab_size"]
    )
    clock.executed.clear()
    submit_all(engine)
    engine.finish()
    assert {id: bare(one) for id, one in engine.outputs.items()} == {id: bare(one) for id, one in plain.outputs.items()}
    assert sum(one.drafts.accepted for one in engine.outputs.values() if one.drafts is not None) > 3
    assert clock.executed["graph"] > 0, "a penalised output goes on alone, without drafts"


@pytest.mark.usefixtures("idle_device")
def test_steps_are_queued_ahead_while_nothing_is_drafted(tiny_model: Tiny) -> None:
    engine = Engine(tiny_model("llama-3.2-1b").path, cuda_graph_max_bs=4)
    engine.loop.scheduler.speculation, drafter = speculation(lambda tokens, most: ())
    ahead = 0
    plan = engine.loop.scheduler.plan_ahead

    def counted(shares: Any) -> Any:
        nonlocal ahead
        planned = plan(shares)
        ahead += bool(planned)
        return planned

    engine.loop.scheduler.plan_ahead = counted  # type: ignore[method-assign]
    engine.submit(range(3, 13), 12)
    engine.finish()
    assert drafter.asked and ahead >= 9
