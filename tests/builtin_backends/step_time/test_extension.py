"""Steps with prompts end within the target time of the sequences that decode."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from sglang_plug import Request, SamplingParams
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing import check_step_extension
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.policies import FirstCome
from sglang_plug_backends.step_time.extension import DECODE_MULTIPLE, MIN_SECONDS, StepTime, StepTimeOff
from sglang_plug_backends.step_time.timed_budget import FIRST_TOKENS, MIN_TOKENS

BASE, ROW, CONTEXT, PROMPT, PAIR = 0.02, 0.0004, 2e-7, 0.001, 3e-8
DRAW = random.Random(3)


@dataclass
class Device:
    """Computes steps in simulated time."""

    scheduler: Scheduler
    extension: StepTime | StepTimeOff
    jitter: random.Random = field(default_factory=lambda: random.Random(5))
    slower: float = 1.0
    seconds: list[tuple[float, int, int]] = field(default_factory=list)
    """The duration, the number of decoding sequences and the prompt tokens of each step."""

    def step(self) -> None:
        chunks = self.scheduler.plan()
        assert chunks
        duration = self.duration(chunks)
        counters = self.scheduler.counters
        self.seconds.append((duration, counters.decode_sequences, counters.prefill_tokens))
        step_budget = self.scheduler.planning.step_budget
        step_budget.step_computed(chunks, duration, has_prompts=counters.prefill_sequences > 0)
        results = [
            StepResult(token=1 + len(chunk.sequence.tokens) % 7) if chunk.complete else StepResult() for chunk in chunks
        ]
        StepCommitter(self.scheduler).commit(chunks, results)
        self.scheduler.check()

    def duration(self, chunks: list[ScheduledChunk]) -> float:
        decode, prefill = BASE, 0.0
        for chunk in chunks:
            if chunk.count <= chunk.sequence.last_step_len:
                decode += ROW + CONTEXT * chunk.end
            else:
                prefill += PROMPT * chunk.count + PAIR * chunk.count * (chunk.start + chunk.count / 2)
        return self.slower * (max(decode, prefill) + 0.3 * min(decode, prefill)) * self.jitter.uniform(0.95, 1.1)

    def late(self, target: float) -> list[float]:
        """Return the durations of steps with prompts and decoding sequences that exceeded ``target``."""
        return [seconds for seconds, decoding, prompt in self.seconds if decoding and prompt and seconds > target]


def make(target: float | None, **options: Any) -> Device:
    clock = itertools.count()
    cache = RadixCache(1, LeastRecentlyUsed(), lambda: float(next(clock)))
    options = {"chunk_size": 2048, "max_running": 64, **options}
    extension = StepTimeOff() if target == 0 else StepTime(target)
    points = extension_points({"step-time": extension})
    return Device(build_scheduler(SlotPool(200_000, 1), cache, FirstCome(), extensions=points, **options), extension)


def submit(device: Device, length: int, count: int) -> Sequence:
    tokens = tuple(DRAW.randrange(10, 30_000) for _ in range(length))
    number = str(DRAW.random())
    sequence = Sequence.of(Request(id=number, tokens=tokens, params=SamplingParams(max_new_tokens=count)), 100_000)
    device.scheduler.add(sequence)
    return sequence


def decoding(device: Device, count: int, steps: int = 60) -> None:
    for _ in range(count):
        submit(device, 100, 10_000)
    for _ in range(steps):
        device.step()
    device.seconds.clear()


@pytest.mark.parametrize("target", [None, 0.1, 0.3])
def test_steps_with_decoding_sequences_end_in_time(target: float | None) -> None:
    device = make(target)
    decoding(device, 8)
    prompts = [submit(device, 2000, 1) for _ in range(10)]
    while not all(prompt.generated for prompt in prompts):
        device.step()
    limit = target or DECODE_MULTIPLE * (BASE + 8 * (ROW + 1000 * CONTEXT))
    assert not device.late(1.5 * limit)
    assert len(device.late(1.2 * limit)) <= 0.05 * len(device.seconds)
    # and the time is used
    full = [seconds for seconds, _, prompt in device.seconds[10:] if prompt]
    assert sorted(full)[len(full) // 2] > 0.7 * limit


def test_long_contexts_get_smaller_chunks() -> None:
    device = make(0.15)
    decoding(device, 4)
    prompt = submit(device, 30_000, 1)
    while not prompt.generated:
        device.step()
    assert not device.late(0.25)
    chunks = [prompt for _, _, prompt in device.seconds if prompt]
    assert sum(chunks[-20:-1]) < 0.7 * sum(chunks[20:39])


def test_prompts_alone_are_computed_in_large_steps() -> None:
    device = make(None)
    decoding(device, 1)
    device.scheduler.abort(device.scheduler.running[0].request.id)
    submit(device, 8192, 1)
    for _ in range(4):
        device.step()
    assert [prompt for _, _, prompt in device.seconds] == [2048] * 4


def test_the_limit_can_be_switched_off() -> None:
    device = make(0.0)
    decoding(device, 8)
    submit(device, 4000, 1)
    device.step()
    assert device.seconds == [(device.seconds[0][0], 8, 2040)]


def metrics(device: Any) -> dict[str, float]:
    """Return the extension's gauges by name; for a gauge with several labels, the last value."""
    return {gauge.name: gauge.value for gauge in device.extension.gauges()}


@pytest.mark.parametrize(
    ("target", "mode", "seconds"), [(None, "automatic", MIN_SECONDS), (0.3, "fixed", 0.3), (0.0, "off", 0.0)]
)
def test_the_target_is_known_before_the_first_step(target: float | None, mode: str, seconds: float) -> None:
    device = make(target)
    step_time = device.extension.info()["step_time"]
    assert (step_time["target_itl"], metrics(device)["step_target_seconds"]) == (mode, seconds)
    decoding(device, 8)
    submit(device, 4000, 1)
    device.step()
    automatic = DECODE_MULTIPLE * (BASE + 8 * (ROW + 160 * CONTEXT))
    target_seconds = metrics(device).pop("step_target_seconds")
    assert target_seconds == pytest.approx(automatic if target is None else seconds, rel=0.1)
    assert device.extension.info()["step_time"]["target_seconds"] == target_seconds
    assert ("step_time_coefficient" in metrics(device)) == (mode != "off")


def test_a_few_decode_steps_suffice() -> None:
    """All of the first decode steps are observed, so that a slow first step does not matter."""
    device = make(None)
    device.slower = 50.0
    submit(device, 20, 10_000)
    device.step()
    device.step()
    device.slower = 1.0
    for _ in range(6):
        device.step()
    submit(device, 2000, 1)
    device.step()
    assert metrics(device)["step_target_seconds"] == pytest.approx(DECODE_MULTIPLE * (BASE + ROW), rel=0.2)


def test_prompts_advance_whatever_the_target_is() -> None:
    device = make(1e-6)
    decoding(device, 8)
    prompts = [submit(device, 100, 1), submit(device, 100, 1)]
    for _ in range(20):
        device.step()
    assert all(prompt.generated for prompt in prompts)
    assert max(prompt for _, _, prompt in device.seconds) <= max(MIN_TOKENS, FIRST_TOKENS)


def test_a_slower_device_gets_smaller_chunks() -> None:
    device = make(0.2)
    decoding(device, 8)
    submit(device, 20_000, 1)
    for _ in range(40):
        device.step()
    before = device.seconds[-1][2]
    device.slower = 3.0
    for _ in range(40):
        device.step()
    assert device.seconds[-1][2] < 0.6 * before
    assert device.seconds[-1][0] < 0.3


def test_sequences_that_decode_come_before_prompts() -> None:
    """A step with too few tokens for all sequences computes the decoding ones first."""
    device = make(None, chunk_size=16)
    decoding(device, 12, steps=200)
    submit(device, 500, 1)
    for _ in range(30):
        device.step()
    assert all(count == 12 for _, count, _ in device.seconds)
    assert all(prompt <= 4 for _, _, prompt in device.seconds)


@pytest.mark.parametrize("extension", [StepTime(), StepTime(0.04), StepTimeOff()])
def test_the_extension_keeps_the_contract(extension: StepTime | StepTimeOff) -> None:
    check_step_extension(extension)
