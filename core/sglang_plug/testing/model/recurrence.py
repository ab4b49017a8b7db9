"""Conformance test of a kernel set's recurrent kernels: a comparison of outputs and states with the definitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from sglang_plug.contracts.model.kernels import Kernels
from sglang_plug.contracts.model.recurrent_state import SequenceSpans, StatePool
from sglang_plug.ops import ssm as scanning

KERNELS = ("causal_conv", "linear_attention", "gated_delta_rule", "selective_scan")
LENGTHS: Sequence[tuple[int, ...]] = ((1,), (1, 1, 1), (70,), (5, 1, 130, 1), (64, 32))
"""New tokens of each sequence of a step; some are multiples of the chunks that kernels work in."""
STATE = 16
"""Size of a Mamba state for each channel."""
BOUNDS = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Greatest relative errors of outputs, and of states, by their dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceSizes:
    """The sizes of a recurrent layer."""

    key_heads: int
    heads: int
    dim: int
    """Width of queries and keys."""
    value_dim: int
    width: int = 4
    """Tokens that a convolution covers."""

    @property
    def channels(self) -> int:
        """Number of channels of all heads."""
        return self.heads * self.value_dim


SIZES = (
    RecurrenceSizes(key_heads=2, heads=4, dim=16, value_dim=16),
    RecurrenceSizes(key_heads=1, heads=3, dim=8, value_dim=20, width=2),
    RecurrenceSizes(key_heads=2, heads=2, dim=30, value_dim=72, width=3),
    RecurrenceSizes(key_heads=1, heads=2, dim=128, value_dim=128),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceCase:
    """One step of one kernel."""

    kernel: str
    dtype: torch.dtype
    sizes: RecurrenceSizes
    lengths: tuple[int, ...]
    by_channel: bool = False
    """Each channel of the keys decays separately."""

    def __str__(self) -> str:
        """Describe the case in messages."""
        decay = ", each channel decays separately" if self.by_channel else ""
        return f"{self.kernel} in {self.dtype} of {self.sizes}, {list(self.lengths)} tokens{decay}"

    def inputs(self, device: str) -> list[Tensor | None]:
        """Return random inputs before states and runs; some are views of wider tensors, as in models."""
        tokens, sizes, dtype = sum(self.lengths), self.sizes, self.dtype
        x = torch.randn(tokens, 2 * sizes.channels, device=device).to(dtype)[:, sizes.channels :]
        if self.kernel == "causal_conv":
            bias = torch.randn(sizes.channels, device=device).to(dtype) if sizes.width > 2 else None
            return [x, torch.randn(sizes.channels, sizes.width, device=device).to(dtype), bias]
        if self.kernel == "selective_scan":
            b, c = torch.randn(tokens, 2 * STATE, device=device).to(dtype).chunk(2, -1)
            rates = -torch.rand(sizes.channels, STATE, device=device)
            return [x, torch.rand(tokens, sizes.channels, device=device), rates, b, c]
        mixed = torch.randn(tokens, 2 * sizes.key_heads, sizes.dim, device=device) * sizes.dim**-0.5
        q, k = mixed.to(dtype).chunk(2, 1)
        own = (sizes.dim,) if self.by_channel else ()
        inputs = [q, k, x.reshape(tokens, sizes.heads, sizes.value_dim)]
        inputs.append(-torch.rand(tokens, sizes.heads, *own, device=device))
        rate = torch.rand(tokens, sizes.heads, device=device).to(dtype)
        return [*inputs, rate] if self.kernel == "gated_delta_rule" else [*inputs]

    def states(self, device: str) -> Tensor:
        """Return random states of more sequences than the step has."""
        sizes, rows = self.sizes, StatePool.RESERVED + len(self.lengths) + 1
        if self.kernel == "causal_conv":
            return torch.randn(rows, sizes.width - 1, sizes.channels, device=device).to(self.dtype)
        if self.kernel == "selective_scan":
            return torch.randn(rows, sizes.channels, STATE, device=device)
        return torch.randn(rows, sizes.heads, sizes.dim, sizes.value_dim, device=device)

    def runs(self, device: str) -> SequenceSpans:
        """Return the step's sequences, the last of which has the first row."""
        rows = range(StatePool.RESERVED, StatePool.RESERVED + len(self.lengths))
        return SequenceSpans.of(list(rows)[::-1], list(self.lengths), torch.device(device))


def recurrence_cases(
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
    sizes: Sequence[RecurrenceSizes] = SIZES,
    lengths: Sequence[tuple[int, ...]] = LENGTHS,
) -> Iterator[RecurrenceCase]:
    """Yield every kernel with all combinations."""
    for kernel, dtype, own, counts in product(KERNELS, dtypes, sizes, lengths):
        yield RecurrenceCase(kernel=kernel, dtype=dtype, sizes=own, lengths=counts)
        if kernel == "gated_delta_rule":
            yield RecurrenceCase(kernel=kernel, dtype=dtype, sizes=own, lengths=counts, by_channel=True)


@torch.inference_mode()
def check_recurrence(kernels: Kernels, *, device: str = "cpu", cases: Sequence[RecurrenceCase] | None = None) -> None:
    """Compare outputs and states with those of the definitions, for sequences of one token and of many.

    Args:
        kernels: the kernel set whose ``causal_conv``, ``linear_attention``, ``gated_delta_rule`` and ``selective_scan``
            are checked.
        device: the device to compute on.
        cases: the cases to check; ``None``: all of ``recurrence_cases()``.

    Raises:
        AssertionError: names the first case that fails, and how.
    """
    torch.manual_seed(5)
    for case in recurrence_cases() if cases is None else cases:
        recurrence_error(kernels, case, device)


def recurrence_error(kernels: Kernels, case: RecurrenceCase, device: str = "cpu") -> float:
    """Return the larger of the relative errors of outputs and states. Raises ``AssertionError`` if it is too large."""
    inputs, runs, mine = case.inputs(device), case.runs(device), case.states(device)
    theirs, before = mine.clone(), mine.clone()
    expected = getattr(scanning, case.kernel)(*inputs, theirs, runs)
    output = getattr(kernels, case.kernel)(*inputs, mine, runs)
    assert (output.dtype, output.shape) == (expected.dtype, expected.shape), (
        f"{case}: gives {list(output.shape)} {output.dtype}, not {list(expected.shape)} {expected.dtype}"
    )
    others = [row for row in range(len(mine)) if row not in runs.rows.tolist()]
    assert torch.equal(mine[others], before[others]), f"{case}: another sequence's state was changed"
    worst = 0.0
    for name, actual, reference in (("outputs", output, expected), ("states", mine, theirs)):
        error = float((actual.double() - reference.double()).norm() / reference.double().norm())
        assert error <= BOUNDS[actual.dtype], (
            f"{case}: relative error of {name} {error:.2e}, more than {BOUNDS[actual.dtype]}"
        )
        worst = max(worst, error)
    return worst
