"""Drafts on the asynchronous fake device do not synchronise; only steps without drafts use graphs and overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import Output
from tests.builtin_backends.speculation.drafting_bench import speculate
from tests.builtin_backends.speculation.test_speculation_engine import guess_following
from tests.fake_cuda.device.tensors import clock
from tests.fake_cuda.engine import Engine
from tests.fake_cuda.test_engine import submit_all_kinds

Tiny = Callable[[str], Any]


def bare(output: Output) -> tuple[object, ...]:
    return output.tokens, output.finish, [logprob.token for logprob in output.logprobs]


def prompts_of(engine: Engine) -> dict[str, list[int]]:
    return {message.request.id: list(message.request.tokens) for message in engine.messages}  # type: ignore[union-attr]


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize("family", ["llama-3.2-1b", "qwen3-moe", "deepseek-v3", "gemma-3-1b", "gpt2"])
def test_outputs_are_the_same_with_drafts(tiny_model: Tiny, family: str) -> None:
    path = tiny_model(family).path
    plain, engine = (Engine(path, cuda_graph_max_bs=4) for _ in range(2))
    submit_all_kinds(plain)
    prompts = prompts_of(plain)
    plain.finish()
    known = [[*prompts[id], *output.tokens] for id, output in plain.outputs.items()]
    speculate(engine.loop.scheduler, guess_following(known, 0.3, 100), vocabulary=engine.loop.info["vocab_size"])
    clock.executed.clear()
    submit_all_kinds(engine)
    engine.finish()
    assert {id: bare(output) for id, output in engine.outputs.items()} == {
        id: bare(output) for id, output in plain.outputs.items()
    }
    assert sum(output.drafts.accepted for output in engine.outputs.values() if output.drafts is not None) > 3
    assert clock.executed["graph"] > 0, "a penalised output goes on alone, without drafts"


@pytest.mark.usefixtures("idle_device")
def test_steps_are_queued_ahead_while_nothing_is_drafted(tiny_model: Tiny) -> None:
    engine = Engine(tiny_model("llama-3.2-1b").path, cuda_graph_max_bs=4)
    drafter = speculate(engine.loop.scheduler, lambda tokens, limit: ())
    ahead = 0
    plan = engine.loop.scheduler.plan_ahead

    def counted(chunks: Any) -> Any:
        nonlocal ahead
        planned = plan(chunks)
        ahead += bool(planned)
        return planned

    engine.loop.scheduler.plan_ahead = counted  # type: ignore[method-assign]
    engine.submit(range(3, 13), 12)
    engine.finish()
    assert drafter.limits and ahead >= 9
