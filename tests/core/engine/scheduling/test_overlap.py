"""A whole engine with the demo model: what a request gets is the same whether steps overlap or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import (
    Constraint,
    EngineConfig,
    LogprobOptions,
    Output,
    PluginOptions,
    Plugins,
    Request,
    SamplingParams,
)
from sglang_plug.clients.pending import merge
from sglang_plug.config import BackendOptions, CacheOptions, ScheduleOptions
from sglang_plug.contracts.text.tokenizer import Tokenizer, TokenizerSource
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.messages.api_messages import Abort, FromEngine, StepOutputs, Submit, ToEngine
from sglang_plug.engine.sequences.launched_step import DeferredSampling
from sglang_plug.engine.startup import build
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

pytestmark = pytest.mark.whole_engine

QUESTIONS = ("Tell me a story.", "Count from 1 to 10.", "Who are you?", "List 3 countries and their capitals.")


class Engine:
    """An engine whose steps the test takes; graphs where the machine has them."""

    def __init__(
        self,
        *,
        overlap: bool,
        graphs: bool = True,
        pool: int = 4096,
        running: int = 16,
        plugins: PluginOptions | None = None,
    ) -> None:
        config = EngineConfig(
            plugins=plugins or PluginOptions(),
            cache=CacheOptions(max_total_tokens=pool),
            # without a target, which would let the speed of the machine decide on the batches
            schedule=ScheduleOptions(chunked_prefill_size=64, max_running_requests=running, target_itl_ms=0.0),
            backends=BackendOptions(disable_cuda_graph=not graphs),
            log_level="warning",
        )
        self.messages: list[ToEngine] = []
        self.outputs: dict[str, Output] = {}
        self.events: dict[str, list[int]] = {}
        self.loop = build.build_engine(config, Plugins.discover(config.plugins), self, self.hear, Heartbeat())
        assert self.loop.pipeline.overlap is False, "a CPU does not work on its own"
        self.loop.pipeline.overlap = overlap
        self.ahead = self.deferred = 0
        self._watch()
        path = Path(self.loop.info["checkpoint_path"])
        self.tokenizer: Tokenizer = load_tokenizer(TokenizerSource(path=path))

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """The engine's inbox."""
        taken, self.messages = self.messages, []
        return taken

    def hear(self, message: FromEngine) -> None:
        for output in message.outputs if isinstance(message, StepOutputs) else ():
            before = self.outputs.get(output.id)
            self.outputs[output.id] = output if before is None else merge(before, output)
            self.events.setdefault(output.id, []).append(len(output.tokens))

    def submit(self, id: str, question: str, **options: Any) -> None:
        fields = {name: options.pop(name) for name in ("logprobs", "constraint", "reasoning_prefix") if name in options}
        tokens = self.tokenizer.encode(self.tokenizer.chat([{"role": "user", "content": question}]), special=False)
        stops = self.tokenizer.eos_token_ids
        params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 24, "stop_token_ids": stops, **options})
        self.messages.append(Submit(Request(id=id, tokens=tuple(tokens), params=params, **fields)))

    def text(self, id: str) -> str:
        return self.tokenizer.decode(self.outputs[id].tokens)

    def step(self) -> None:
        self.loop.step()
        self.loop.scheduler.check()

    def finish(self) -> dict[str, Output]:
        try:
            while self.messages or self.loop.busy:
                self.step()
        finally:
            self.loop.close()
        assert not self.loop.pipeline.in_flight
        return self.outputs

    def _watch(self) -> None:
        launch = self.loop.runner.launch

        def watched(shares: Any, before: Any = None) -> Any:
            self.ahead += before is not None
            launched = launch(shares, before)
            self.deferred += isinstance(launched, DeferredSampling)
            return launched

        self.loop.runner.launch = watched  # type: ignore[method-assign]


def both(fill: Callable[[Engine], None], **options: Any) -> tuple[Engine, Engine]:
    """The same requests with and without; the outputs have been compared, log-probabilities up to rounding."""
    engines = Engine(overlap=False, **options), Engine(overlap=True, **options)
    for engine in engines:
        fill(engine)
        engine.finish()
    plain, other = (engine.outputs for engine in engines)
    assert plain.keys() == other.keys()
    for id, output in plain.items():
        assert without_numbers(other[id]) == without_numbers(output), id
        assert numbers(other[id]) == pytest.approx(numbers(output), abs=1e-4), id
    assert engines[0].events == engines[1].events
    assert engines[0].ahead == 0 and engines[1].ahead > 10
    return engines


def without_numbers(output: Output) -> Output:
    def bare(reported: Any) -> Any:
        return tuple(replace(entry, logprob=None, top=(), ids=()) for entry in reported)

    return replace(output, logprobs=bare(output.logprobs), prompt_logprobs=bare(output.prompt_logprobs))


def numbers(output: Output) -> list[float]:
    reported = (*output.prompt_logprobs, *output.logprobs)
    picked = [entry.logprob for entry in reported if entry.logprob is not None]
    return picked + [number for entry in reported for _, number in (*entry.top, *entry.ids)]


@pytest.mark.parametrize("graphs", [False, True])
def test_all_ways_of_sampling(graphs: bool) -> None:
    def fill(engine: Engine) -> None:
        for number, question in enumerate(QUESTIONS):
            engine.submit(f"greedy {number}", question, max_new_tokens=6 + 5 * number)
        engine.submit("seeded", QUESTIONS[0], temperature=1.0, seed=7, top_p=0.9)
        engine.submit("cut", QUESTIONS[1], temperature=1.3, seed=8, top_k=5, min_p=0.02)
        engine.submit("once", QUESTIONS[3], max_new_tokens=1)
        penalties = {"frequency_penalty": 0.8, "presence_penalty": 0.4, "repetition_penalty": 1.2}
        engine.submit("penalised", QUESTIONS[2], **penalties)
        engine.submit("penalised too", QUESTIONS[3], temperature=1.0, seed=9, max_new_tokens=40, **penalties)
        stops = tuple(range(0, 400, 3))
        engine.submit("stopped", QUESTIONS[0], stop_token_ids=stops)
        engine.submit("stopped late", QUESTIONS[0], stop_token_ids=stops, min_new_tokens=9)
        engine.submit("biased", QUESTIONS[1], logit_bias={50: 4.0}, max_new_tokens=15)
        engine.submit("reported", QUESTIONS[2], logprobs=LogprobOptions(start=2, top=3, ids=(5, 6)))

    engines = both(fill, graphs=graphs)
    reasons = {id: output.finish.reason for id, output in engines[0].outputs.items() if output.finish}
    assert reasons["stopped"] == reasons["stopped late"] == "stop"
    assert len(engines[0].outputs["stopped late"].tokens) >= 9 > len(engines[0].outputs["stopped"].tokens)


SCHEMA = """{"type": "object", "required": ["name", "age"], "additionalProperties": false,
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}}}"""


@pytest.mark.parametrize("graphs", [False, True])
def test_constraints_among_others(graphs: bool) -> None:
    """Forward passes are launched ahead; what may come is known later, and tokens may have to follow."""

    colours, letters = Constraint("regex", r"(red|green|blue){4}"), Constraint("regex", "[a-z ]{60}")
    schema = Constraint("json_schema", SCHEMA)

    def fill(engine: Engine) -> None:
        for number, constraint in enumerate((colours, letters, schema)):  # compiled, so that nothing waits for that
            engine.submit(f"first {number}", QUESTIONS[0], constraint=constraint, max_new_tokens=1)
            while len(engine.outputs) <= number:  # one after the other: compiling ends in any order
                engine.step()
        engine.submit("free", QUESTIONS[0], max_new_tokens=60)
        engine.submit("regex", QUESTIONS[1], constraint=colours, max_new_tokens=30)
        engine.submit("schema", QUESTIONS[3], constraint=schema, max_new_tokens=40)
        penalties = {"frequency_penalty": 0.8, "presence_penalty": 0.4}
        sampled = {"temperature": 1.0, "seed": 5, **penalties}
        engine.submit("sampled", QUESTIONS[2], constraint=letters, max_new_tokens=80, **sampled)
        reported = LogprobOptions(start=-1, top=2)
        engine.submit("reported", QUESTIONS[3], constraint=colours, max_new_tokens=9, logprobs=reported)
        engine.submit("long", "A long one. " * 12, constraint=colours, max_new_tokens=20)
        while {"regex", "schema", "sampled"} - engine.outputs.keys():
            engine.step()
        engine.submit("late", QUESTIONS[1], constraint=colours, max_new_tokens=20)

    engines = [Engine(overlap=overlap, graphs=graphs) for overlap in (False, True)]
    for engine in engines:
        fill(engine)
        engine.finish()
    for id, output in engines[0].outputs.items():
        assert without_numbers(engines[1].outputs[id]) == without_numbers(output), id
        assert numbers(engines[1].outputs[id]) == pytest.approx(numbers(output), abs=1e-4), id
    assert json.loads(engines[1].text("schema"))["age"] <= 99
    assert engines[1].ahead > 10 and engines[1].deferred > 5, engines[1].deferred


def test_retractions_and_arrivals() -> None:
    def fill(engine: Engine) -> None:
        for number in range(8):
            more = {"temperature": 1.0, "seed": number} if number % 2 else {}
            engine.submit(str(number), QUESTIONS[number % 4], max_new_tokens=50, stop_token_ids=(), **more)
            if number % 3 == 2:
                engine.step()
        engine.messages.append(Abort(("7",)))
        engine.step()

    results = []
    for overlap in (False, True):
        engine = Engine(overlap=overlap, pool=200)
        fill(engine)
        results.append(engine.finish())
        assert sum(output.retractions for output in engine.outputs.values()) > 0
    assert engine.ahead > 10
    for id, output in results[0].items():
        assert results[1][id].tokens == output.tokens, id
        assert results[1][id].finish == output.finish


def test_it_is_on_where_the_device_works_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "asynchronous", True)
    for disabled in (False, True):
        config = EngineConfig(
            cache=CacheOptions(max_total_tokens=64),
            schedule=ScheduleOptions(disable_overlap_schedule=disabled),
            backends=BackendOptions(disable_cuda_graph=True),
        )
        plugins = Plugins.discover(config.plugins)
        loop = build.build_engine(config, plugins, None, lambda message: None, Heartbeat())  # type: ignore[arg-type]
        loop.close()
        assert loop.pipeline.overlap is not disabled
