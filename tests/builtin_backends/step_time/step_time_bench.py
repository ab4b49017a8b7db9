"""A whole engine whose steps take virtual time, for tests of the step-time model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from sglang_plug import EngineConfig, Plugins, Request, SamplingParams
from sglang_plug.engine.execution import pipeline
from sglang_plug.engine.execution.pipeline import InFlightStep
from sglang_plug.engine.messages.api_messages import FromEngine, StepOutputs, Submit, ToEngine
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug_backends.step_time.timed_budget import FIRST_TOKENS

STEP, ROW, TOKEN = 0.004, 0.001, 0.002
"""Virtual seconds of a step, of a sequence that decodes in it, and of a prompt or draft token."""
TARGET = 0.1
FITTING = int((TARGET - STEP - 3 * ROW) / TOKEN)
"""Number of prompt tokens with which a step that also decodes three sequences takes ``TARGET``."""
LONG_PROMPT, MAX_STEPS = 400, 1000


@dataclass(frozen=True, slots=True)
class Step:
    """A step's work, and the virtual seconds that it took."""

    decoding: int
    prompt_tokens: int
    drafts: int
    seconds: float


class Clock:
    """A replacement for the ``time`` module in the pipeline."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Return the virtual time."""
        return self.now


class Bench:
    """An engine whose steps a test runs and records.

    Args:
        config: its configuration; the time of a step is set to ``TARGET``.
        patch: replaces the clock of the pipeline.
    """

    def __init__(self, config: EngineConfig, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[Step] = []
        self.ended: dict[str, str] = {}
        self._messages: list[ToEngine] = []
        clock, results = Clock(), InFlightStep.results

        def timed(step: InFlightStep) -> list[StepResult]:
            self.steps.append(work := _work(step.chunks))
            clock.now += work.seconds
            return results(step)

        patch.setattr(pipeline, "time", clock)
        patch.setattr(InFlightStep, "results", timed)
        schedule = replace(config.schedule, target_itl_ms=1000 * TARGET, chunked_prefill_size=256)
        config = replace(config, schedule=schedule, log_level="warning")
        self.loop = build_engine(config, Plugins.discover(config.plugins), self, self._hear, Heartbeat())

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Return the messages of the engine's inbox."""
        taken, self._messages = self._messages, []
        return taken

    def _hear(self, message: FromEngine) -> None:
        for output in message.outputs if isinstance(message, StepOutputs) else ():
            if output.finish is not None:
                self.ended[output.id] = output.finish.reason

    def submit(self, id: str, tokens: Iterable[int], count: int) -> None:
        """Submit a request whose output always repeats one token, which n-gram drafts predict."""
        params = SamplingParams(temperature=0.0, max_new_tokens=count, logit_bias={50: 100.0}, stop_token_ids=())
        self._messages.append(Submit(Request(id=id, tokens=tuple(tokens), params=params)))

    def run(self) -> list[Step]:
        """Let three sequences decode, then compute a long prompt; return the steps with both."""
        for number in range(3):
            self.submit(f"stream {number}", range(10 + number, 30 + number), 300)
        while len(self.steps) < 12:
            self.loop.step()
        self.submit("prompt", (3 + token % 400 for token in range(LONG_PROMPT)), 1)
        for _ in range(MAX_STEPS):
            if "prompt" in self.ended:
                break
            self.loop.step()
        assert self.ended.get("prompt") == "length"
        return [step for step in self.steps if step.decoding and step.prompt_tokens]


def check_learning(bench: Bench, mixed: list[Step], *, overlap: bool = False) -> None:
    """Assert that the coefficients equal those of the virtual clock, and that steps with prompts met the target.

    Args:
        bench: the engine, after its steps.
        mixed: its steps with sequences that decode and prompts.
        overlap: the second of them was planned before the first had ended.
    """
    unknown, known = mixed[: 1 + overlap], mixed[1 + overlap :]
    learned = bench.loop.scheduler.planning.step_budget.step_coefficients()
    assert learned["decode_step"] > 0 and learned["decode_sequence"] > 0
    assert learned["prefill_token"] > 0
    assert all(step.prompt_tokens <= FIRST_TOKENS for step in unknown)
    assert all(step.seconds <= 1.25 * TARGET for step in known), mixed
    assert all(step.prompt_tokens <= 1.25 * FITTING for step in known), mixed
    assert sum(step.prompt_tokens for step in mixed) == LONG_PROMPT
    assert max(step.prompt_tokens for step in known) >= 0.6 * FITTING, "the time is used"


def _work(chunks: Iterable[ScheduledChunk]) -> Step:
    decoding = prompt_tokens = drafts = 0
    for chunk in chunks:
        if chunk.start >= chunk.sequence.prompt_len:
            decoding += 1
            drafts += chunk.width - 1
        else:
            prompt_tokens += chunk.width
    seconds = STEP + ROW * max(1, decoding) + TOKEN * (prompt_tokens + drafts)
    return Step(decoding, prompt_tokens, drafts, seconds)
