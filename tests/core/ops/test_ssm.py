"""Recurrent operations equal their definitions, and do not depend on how a sequence is divided."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.contracts.model.recurrent_state import SequenceSpans, StatePool, StateShape
from sglang_plug.ops.ssm import causal_conv, gated_delta_rule, linear_attention, selective_scan

CPU = torch.device("cpu")
KEY_HEADS, HEADS, DIM, VALUE_DIM, CHANNELS, STATE, WIDTH = 2, 4, 8, 6, 10, 5, 4
Scan = Callable[..., Tensor]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


class Case:
    """A recurrent function, its inputs for ``length`` tokens, and the shape of a sequence's state."""

    def __init__(self, scan: Scan, inputs: Callable[[int], list[Tensor]], shape: tuple[int, ...]) -> None:
        self.scan, self.inputs, self.shape = scan, inputs, shape

    def states(self, rows: int) -> Tensor:
        return torch.zeros(rows, *self.shape)


def attended(length: int) -> list[Tensor]:
    q, k = (numbers(length, KEY_HEADS, DIM, seed=seed) for seed in (1, 2))
    return [q, k, numbers(length, HEADS, VALUE_DIM, seed=3), -numbers(length, HEADS, seed=4).exp() / 4]


def each_channel(length: int) -> list[Tensor]:
    """Return inputs with a decay for each channel of the keys, some of which decay to zero at once."""
    return [*attended(length)[:3], -(3 * numbers(length, HEADS, DIM, seed=4)).exp()]


def scanned(length: int) -> list[Tensor]:
    x, step = numbers(length, CHANNELS, seed=1), F.softplus(numbers(length, CHANNELS, seed=2))
    return [x, step, numbers(length, STATE, seed=4), numbers(length, STATE, seed=5)]


RATES = -numbers(CHANNELS, STATE, seed=3).exp()
TAPS, BIAS = numbers(CHANNELS, WIDTH, seed=6), numbers(CHANNELS, seed=7)

CASES = {
    "convolution": Case(
        lambda x, states, runs: causal_conv(x, TAPS, BIAS, states, runs),
        lambda length: [numbers(length, CHANNELS, seed=1)],
        (WIDTH - 1, CHANNELS),
    ),
    "linear attention": Case(linear_attention, attended, (HEADS, DIM, VALUE_DIM)),
    "gated delta rule": Case(
        gated_delta_rule,
        lambda length: [*attended(length), numbers(length, HEADS, seed=5).sigmoid()],
        (HEADS, DIM, VALUE_DIM),
    ),
    "gated delta rule, each channel separately": Case(
        gated_delta_rule,
        lambda length: [*each_channel(length), numbers(length, HEADS, seed=5).sigmoid()],
        (HEADS, DIM, VALUE_DIM),
    ),
    "selective scan": Case(
        lambda x, step, b, c, states, runs: selective_scan(x, step, RATES, b, c, states, runs),
        scanned,
        (CHANNELS, STATE),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def one_by_one(name: str, inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Compute the definition token by token in float64; return the outputs and the final state."""
    length, state = len(inputs[0]), CASES[name].states(1)[0].double()
    actual = []
    for t in range(length):
        x, *more = (part[t].double() for part in inputs)
        if name == "convolution":
            window = torch.cat((state, x[None]))
            actual.append((window * TAPS.double().T).sum(0) + BIAS.double())
            state = window[1:]
        elif name == "selective scan":
            step, b, c = more
            state = state * (step[:, None] * RATES.double()).exp() + (step * x)[:, None] * b
            actual.append(state @ c)
        else:
            k, v, decay, *beta = more
            q, k = (part.repeat_interleave(HEADS // KEY_HEADS, 0) for part in (x, k))
            state = state * decay.exp().view(HEADS, -1, 1)
            if beta:
                q, k = F.normalize(q, dim=-1) * DIM**-0.5, F.normalize(k, dim=-1)
                v = (v - torch.einsum("hd,hdv->hv", k, state)) * beta[0][:, None]
            state = state + torch.einsum("hd,hv->hdv", k, v)
            actual.append(torch.einsum("hd,hdv->hv", q, state))
    return torch.stack(actual), state


@every_case
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_each_token_as_the_definition_says(name: str, length: int) -> None:
    case, inputs = CASES[name], CASES[name].inputs(length)
    expected, state = one_by_one(name, inputs)
    states = case.states(4)
    actual = case.scan(*inputs, states, SequenceSpans.of([2], [length], CPU))
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(states[2].double(), state, atol=1e-5, rtol=1e-4)
    assert not states[[0, 1, 3]].any(), "another sequence's state was written"


@every_case
@given(
    steps=st.lists(st.lists(st.sampled_from([0, 1, 1, 2, 5, 70]), min_size=3, max_size=3), min_size=1, max_size=4),
)
def test_sequences_may_be_cut_anywhere_and_computed_together(name: str, steps: list[list[int]]) -> None:
    """Sequences may be divided anywhere and computed in one batch; ``steps`` are the numbers of tokens by step and
    sequence."""
    case, rows = CASES[name], [4, 2, 3]
    lengths = [sum(step[index] for step in steps) for index in range(3)]
    inputs = [[part.roll(index, 0) for part in case.inputs(max(1, length))] for index, length in enumerate(lengths)]
    pieces: list[list[Tensor]] = [[] for _ in rows]
    done = [0, 0, 0]
    states = case.states(6)
    for step in steps:
        active = [index for index in range(3) if step[index]]
        if not active:
            continue
        parts = [[part[done[index] : done[index] + step[index]] for part in inputs[index]] for index in active]
        runs = SequenceSpans.of([rows[index] for index in active], [step[index] for index in active], CPU)
        actual = case.scan(*map(torch.cat, zip(*parts, strict=True)), states, runs)
        for index, piece in zip(active, actual.split_with_sizes(runs.lengths), strict=True):
            pieces[index].append(piece)
            done[index] += step[index]
    for index, length in enumerate(lengths):
        if length:
            expected, state = one_by_one(name, inputs[index])
            torch.testing.assert_close(torch.cat(pieces[index]).double(), expected, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(states[rows[index]].double(), state, atol=1e-5, rtol=1e-4)


def is_wide(name: str, part: Tensor) -> bool:
    """Return True for inputs that are float32 whatever the weights' dtype is: time steps, rates and decays."""
    return bool((part <= 0).all()) or (part.dim() == 2 and name != "convolution")


@every_case
def test_half_precision_inputs_give_half_precision_outputs(name: str) -> None:
    case = CASES[name]
    inputs = [part if is_wide(name, part) else part.bfloat16() for part in case.inputs(70)]
    expected, _ = one_by_one(name, [part.float() for part in inputs])
    actual = case.scan(*inputs, case.states(3), SequenceSpans.of([2], [70], CPU))
    assert actual.dtype == inputs[0].dtype
    torch.testing.assert_close(actual.double(), expected, atol=0.1, rtol=0.05)


def test_a_pool_has_a_row_of_zeros_and_copies_rows() -> None:
    pool = StatePool(
        [StateShape(shape=(2,)), StateShape(shape=(3, 1), dtype=torch.float32)],
        rows=4,
        dtype=torch.bfloat16,
        device=CPU,
    )
    first, second = pool.states
    assert (first.dtype, second.dtype) == (torch.bfloat16, torch.float32)
    first[2], second[2], second[3] = 1.0, 2.0, 3.0
    pool.copy(torch.tensor([2, 1]), torch.tensor([3, 2]))  # row 2 is read before it is written
    assert first[3].tolist() == [1.0, 1.0] and not first[2].any()
    assert second[3].flatten().tolist() == [2.0] * 3 and not second[2].any()
