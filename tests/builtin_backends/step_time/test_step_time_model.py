"""The step-time model learns from the durations of earlier steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_backends.step_time.step_time_model import StepTimeModel, StepWork

BASE, ROW, CONTEXT, PROMPT, PAIR = 0.02, 0.0004, 2e-7, 0.0009, 3e-8


def work(lengths: list[int], prompts: list[tuple[int, int]]) -> StepWork:
    result = StepWork()
    for length in lengths:
        result.add_decode(length)
    for start, count in prompts:
        result.add_prefill(start, count)
    return result


def true_seconds(step: StepWork) -> float:
    """Return the duration of a step on a device that hides half of the time for reading weights behind prompts."""
    decode = BASE + ROW * step.decode_rows + CONTEXT * step.decode_context
    if not step.prefill_tokens:
        return decode
    return 0.5 * decode + PROMPT * step.prefill_tokens + PAIR * step.prefill_pairs


def random_step(generator: random.Random) -> StepWork:
    lengths = [generator.randrange(10, 4000) for _ in range(generator.randrange(1, 17))]
    prompts = [(generator.randrange(0, 4000), generator.randrange(1, 300))] if generator.random() < 0.5 else []
    return work(lengths, prompts)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_durations_are_predicted_after_a_few_dozen_steps(noise: float) -> None:
    generator, model = random.Random(7), StepTimeModel()
    for _ in range(80):
        step = random_step(generator)
        model.observe(step, true_seconds(step) * (1 + noise * generator.uniform(-1, 1)))
    for _ in range(50):
        step = random_step(generator)
        assert model.step_seconds(step) == pytest.approx(true_seconds(step), rel=0.02 + noise)


def test_steps_during_which_the_machine_did_something_else_hardly_matter() -> None:
    generator, model = random.Random(8), StepTimeModel()
    for number in range(200):
        step = random_step(generator)
        model.observe(step, true_seconds(step) * (40 if number % 10 == 5 else 1))
    for _ in range(50):
        step = random_step(generator)
        assert model.step_seconds(step) == pytest.approx(true_seconds(step), rel=0.3)


def test_a_first_step_that_compiled_kernels_is_soon_outweighed() -> None:
    model, step = StepTimeModel(), work([100] * 4, [])
    model.observe(step, 30.0)
    for _ in range(10):
        model.observe(step, true_seconds(step))
    assert model.decode_seconds(4, 400) == pytest.approx(true_seconds(step), rel=0.05)


def test_a_device_that_becomes_slower_is_followed() -> None:
    generator, model = random.Random(9), StepTimeModel()
    for factor in (1, 5):
        for _ in range(300):
            step = random_step(generator)
            model.observe(step, factor * true_seconds(step))
    step = work([500] * 8, [(0, 100)])
    assert model.step_seconds(step) == pytest.approx(5 * true_seconds(step), rel=0.2)


def test_steps_that_are_all_alike_do_not_spoil_other_predictions() -> None:
    """Thousands of equal steps do not determine the coefficients, which stay finite and plausible."""
    generator, model = random.Random(10), StepTimeModel()
    for _ in range(100):
        step = random_step(generator)
        model.observe(step, true_seconds(step))
    alike = work([700] * 8, [])
    for _ in range(5000):
        model.observe(alike, true_seconds(alike) * (1 + 0.05 * generator.uniform(-1, 1)))
    assert model.decode_seconds(8, 5600) == pytest.approx(true_seconds(alike), rel=0.05)
    other = work([700] * 16, [])
    assert model.step_seconds(other) == pytest.approx(true_seconds(other), rel=0.5)


@given(
    st.integers(0, 30_000),
    st.floats(0.03, 2.0),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=64),
    st.integers(),
)
def test_the_tokens_that_fit_take_the_time_that_is_left(
    start: int, seconds: float, lengths: list[int], seed: int
) -> None:
    generator, model = random.Random(seed), StepTimeModel()
    for _ in range(60):
        step = random_step(generator)
        model.observe(step, true_seconds(step))
    planned = work(lengths, [])
    count = model.prefill_tokens(planned, start, seconds)
    assert count >= 0
    if 1 <= count < 1e6:
        planned.prefill_tokens, planned.prefill_pairs = 0, 0.0
        full = work(lengths, [])
        full.prefill_tokens, full.prefill_pairs = int(count), count * (start + 0.5 * count)
        assert model.step_seconds(full) == pytest.approx(seconds, rel=0.05)


def test_no_coefficient_is_negative() -> None:
    """Durations that decrease with more work, by accident, do not make tokens free."""
    model = StepTimeModel()
    for count in range(1, 60):
        model.observe(work([100] * count, []), 0.05 / count)
        model.observe(work([100], [(0, count)]), 0.5 / count)
    assert all(value >= 0 for value in model.coefficients().values())
    assert model.step_seconds(work([100] * 8, [(0, 10)])) > 0


def test_a_machine_that_becomes_slower_does_not_leave_prompts_without_time() -> None:
    generator, model = random.Random(9), StepTimeModel()
    for _ in range(80):
        step = random_step(generator)
        model.observe(step, true_seconds(step))
    slow = work([500] * 8, [(1000, 16)])
    for _ in range(300):
        model.observe(slow, 20 * true_seconds(slow))
    base = model.decode_seconds(8, 4000)
    assert model.coefficients()["prefill_base_multiple"] <= 2
    assert model.prefill_tokens(work([500] * 8, []), 1000, 8 * base) > 0
    for _ in range(300):
        step = random_step(generator)
        model.observe(step, true_seconds(step))
    assert model.step_seconds(slow) == pytest.approx(true_seconds(slow), rel=0.1)
