"""Kernels from logits to tokens: bit masks, and sampling without a sort.

Sampling of a row: with ``d``, the distance of a logit from the largest, everything with ``d < low`` is kept, everything
with ``d >= high`` is not, and of the tokens between as many, by id, as the limits allow. The two bounds are narrowed by
counting and summing the tokens below several values between them, until between them is one token, one value, or only
kept tokens. Only the first of these passes reads the whole row; it also determines which tokens may be kept at all, and
the later ones work on a list of those. ``Bounds`` in the arguments below are six numbers: ``low``, ``high``, how many
tokens are below each, and the sum of their weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import await_inputs

WAYS = tl.constexpr(4)
"""Number of values between the bounds that are tested in one pass."""
MAX_PASSES = tl.constexpr(24)
"""Maximum passes, more than the bounds ever need; rows that are not finite end here."""
NO_WEIGHT = tl.constexpr(104.0)
"""Distance beyond which ``exp`` of its negative is zero in float32."""
NEAR = tl.constexpr(1.2e-7)
"""Relative difference below which values count as equal: float32 can hardly distinguish them."""
NOWHERE = tl.constexpr(2147483647)


@triton.jit  # type: ignore[untyped-decorator]
def mask_kernel(
    logits_pointer: tl.tensor,  # [rows, width]
    rows_pointer: tl.tensor,  # [masks] int64
    mask_pointer: tl.tensor,  # [masks, words] int32
    width: tl.tensor,
    words: tl.tensor,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_pointer + index)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = tokens < width
    word = tl.load(mask_pointer + index * words + tokens // 32, mask=ok & (tokens // 32 < words), other=0)
    barred = ok & (((word >> (tokens % 32)) & 1) == 0)
    logits = tl.load(logits_pointer + row * width + tokens, mask=barred, other=0.0)
    tl.store(logits_pointer + row * width + tokens, logits + float("-inf"), mask=barred)


@triton.jit  # type: ignore[untyped-decorator]
def _below(
    logits: tl.tensor, listed: tl.tensor, in_list: tl.tensor, positions: tl.tensor, count: tl.tensor, top: tl.tensor
) -> tl.tensor:
    """Return ``d`` of tokens at ``positions``: of the list's first ``in_list`` or the row; infinite past ``count``."""
    is_listed = positions < in_list
    tokens = tl.where(is_listed, tl.load(listed + positions, mask=is_listed, other=0), positions)
    return top - tl.load(logits + tokens, mask=positions < count, other=float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _narrow(
    logits: tl.tensor,
    listed: tl.tensor,
    in_list: tl.tensor,
    count: tl.tensor,
    top: tl.tensor,
    temperature: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    low_count: tl.tensor,
    high_count: tl.tensor,
    low_mass: tl.tensor,
    high_mass: tl.tensor,
    top_k: tl.tensor,
    share: tl.tensor,
    SQUARED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Narrow the bounds: below ``low`` are fewer than ``top_k`` tokens and less than ``share``."""
    fraction = (tl.arange(0, WAYS) + 1).to(tl.float32) / (WAYS + 1)
    if SQUARED:
        fraction = fraction * fraction
    values = low + (high - low) * fraction
    counts = tl.zeros((BLOCK, WAYS), tl.int32)
    masses = tl.zeros((BLOCK, WAYS), tl.float32)
    for start in range(0, count, BLOCK):
        below = _below(logits, listed, in_list, start + tl.arange(0, BLOCK), count, top)
        weights = tl.exp(-below / temperature)
        is_below = below[:, None] < values[None, :]
        counts += is_below.to(tl.int32)
        masses += tl.where(is_below, weights[:, None], 0.0)
    count_of = tl.sum(counts, 0)
    mass_of = tl.sum(masses, 0)
    inside = (count_of < top_k) & (mass_of < share)
    low_count = tl.maximum(low_count, tl.max(tl.where(inside, count_of, 0), 0))
    low_mass = tl.maximum(low_mass, tl.max(tl.where(inside, mass_of, 0.0), 0))
    low = tl.maximum(low, tl.max(tl.where(inside, values, 0.0), 0))
    high_count = tl.minimum(high_count, tl.min(tl.where(inside, high_count, count_of), 0))
    high_mass = tl.minimum(high_mass, tl.min(tl.where(inside, high_mass, mass_of), 0))
    high = tl.minimum(high, tl.min(tl.where(inside, high, values), 0))
    return low, high, low_count, high_count, low_mass, high_mass


@triton.jit  # type: ignore[untyped-decorator]
def _search(
    logits: tl.tensor,
    listed: tl.tensor,
    in_list: tl.tensor,
    count: tl.tensor,
    top: tl.tensor,
    temperature: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    low_count: tl.tensor,
    high_count: tl.tensor,
    low_mass: tl.tensor,
    high_mass: tl.tensor,
    top_k: tl.tensor,
    share: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Find bounds between which there is one token, one value, or no token that is dropped."""
    passes = 0
    while (
        (passes < MAX_PASSES)
        & (high_count - low_count > 1)
        & ((high_count > top_k) | (high_mass > share))
        & (high - low > high * NEAR)
    ):
        low, high, low_count, high_count, low_mass, high_mass = _narrow(
            logits,
            listed,
            in_list,
            count,
            top,
            temperature,
            low,
            high,
            low_count,
            high_count,
            low_mass,
            high_mass,
            top_k,
            share,
            SQUARED=False,
            BLOCK=BLOCK,
        )
        passes += 1
    return low, high, low_count, high_count, low_mass, high_mass


@triton.jit  # type: ignore[untyped-decorator]
def _list_below(
    logits: tl.tensor, listed: tl.tensor, width: tl.tensor, top: tl.tensor, high: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """List the tokens with ``d < high`` in order; returns their number."""
    result = tl.full((), 0, tl.int32)
    for start in range(0, width, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        below = top - tl.load(logits + tokens, mask=tokens < width, other=float("-inf"))
        taken = (below < high).to(tl.int32)
        tl.store(listed + result + tl.cumsum(taken, 0) - taken, tokens, mask=taken != 0)
        result += tl.sum(taken, 0)
    tl.debug_barrier()  # other threads read these writes
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _kept(
    below: tl.tensor,
    temperature: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    between_count: tl.tensor,
    between_mass: tl.tensor,
    top_k: tl.tensor,
    share: tl.tensor,
    min_p: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return weights of a block's tokens, zero for dropped ones, and the updated count and mass between the bounds."""
    weights = tl.exp(-below / temperature)
    kept = below < low
    if high > low:
        between = (below >= low) & (below < high)
        flags = between.to(tl.int32)
        mass = tl.where(between, weights, 0.0)
        earlier = between_count + tl.cumsum(flags, 0) - flags
        before = between_mass + tl.cumsum(mass, 0) - mass
        kept = kept | (between & (earlier < top_k) & (before < share))
        between_count += tl.sum(flags, 0)
        between_mass += tl.sum(mass, 0)
    return tl.where(kept & (weights >= min_p), weights, 0.0), between_count, between_mass


@triton.jit  # type: ignore[untyped-decorator]
def draw_kernel(
    logits_pointer: tl.tensor,  # [rows, width] float32
    listed_pointer: tl.tensor,  # [rows, width] int32, scratch
    temperature_pointer: tl.tensor,  # [rows] float32
    top_k_pointer: tl.tensor,  # [rows] int32
    top_p_pointer: tl.tensor,  # [rows] float32
    min_p_pointer: tl.tensor,  # [rows] float32
    uniform_pointer: tl.tensor,  # [rows] float64
    out_pointer: tl.tensor,  # [rows] int64
    width: tl.tensor,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    logits, listed = logits_pointer + row * width, listed_pointer + row * width
    temperature = tl.load(temperature_pointer + row)
    top_k, top_p = tl.load(top_k_pointer + row), tl.load(top_p_pointer + row)
    min_p = tl.load(min_p_pointer + row)

    largest = tl.full((WIDE,), float("-inf"), tl.float32)
    for start in range(0, width, WIDE):
        tokens = start + tl.arange(0, WIDE)
        largest = tl.maximum(largest, tl.load(logits + tokens, mask=tokens < width, other=float("-inf")))
    top = tl.max(largest, 0)
    high = temperature * NO_WEIGHT
    masses, counts = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.int32)
    for start in range(0, width, WIDE):
        tokens = start + tl.arange(0, WIDE)
        below = top - tl.load(logits + tokens, mask=tokens < width, other=float("-inf"))
        masses += tl.exp(-below / temperature)
        counts += (below < high).to(tl.int32)
    high_mass, high_count = tl.sum(masses, 0), tl.sum(counts, 0)

    low, low_count, low_mass = high, high_count, high_mass  # all is kept
    in_list, count = 0, width
    share = high_mass * 2
    if (top_k < width) | (top_p < 1.0):
        low, low_count, low_mass = high * 0, high_count * 0, high_mass * 0
        if top_k >= width:
            share = top_p * high_mass
        low, high, low_count, high_count, low_mass, high_mass = _narrow(
            logits,
            listed,
            in_list,
            count,
            top,
            temperature,
            low,
            high,
            low_count,
            high_count,
            low_mass,
            high_mass,
            top_k,
            share,
            SQUARED=True,
            BLOCK=BLOCK,
        )
        count = _list_below(logits, listed, width, top, high, BLOCK=BLOCK)
        in_list = count
        low, high, low_count, high_count, low_mass, high_mass = _search(
            logits,
            listed,
            in_list,
            count,
            top,
            temperature,
            low,
            high,
            low_count,
            high_count,
            low_mass,
            high_mass,
            top_k,
            share,
            BLOCK=BLOCK,
        )
        if (top_k < width) & (top_p < 1.0):
            between = tl.maximum(high_count - low_count, 1).to(tl.float32)
            taken = (tl.minimum(top_k, high_count) - low_count).to(tl.float32)
            share = top_p * (low_mass + (high_mass - low_mass) * taken / between)  # of the tokens kept by top-k
            if low_mass >= share:
                high, high_count, high_mass = low, low_count, low_mass
                low, low_count, low_mass = high * 0, high_count * 0, high_mass * 0
            low, high, low_count, high_count, low_mass, high_mass = _search(
                logits,
                listed,
                in_list,
                count,
                top,
                temperature,
                low,
                high,
                low_count,
                high_count,
                low_mass,
                high_mass,
                top_k,
                share,
                BLOCK=BLOCK,
            )

    total = tl.full((), 0.0, tl.float64)
    seen_count, seen_mass = low_count, low_mass
    for start in range(0, count, BLOCK):
        below = _below(logits, listed, in_list, start + tl.arange(0, BLOCK), count, top)
        weights, seen_count, seen_mass = _kept(
            below, temperature, low, high, seen_count, seen_mass, top_k, share, min_p
        )
        total += tl.sum(weights.to(tl.float64), 0)
    target = tl.load(uniform_pointer + row) * total
    passed = tl.full((), 0.0, tl.float64)
    seen_count, seen_mass = low_count, low_mass
    start, position, is_found = 0, 0, False
    while (start < count) & (not is_found):
        positions = start + tl.arange(0, BLOCK)
        below = _below(logits, listed, in_list, positions, count, top)
        weights, seen_count, seen_mass = _kept(
            below, temperature, low, high, seen_count, seen_mass, top_k, share, min_p
        )
        wide = weights.to(tl.float64)
        position = tl.maximum(
            position, tl.max(tl.where(weights > 0, positions, 0), 0)
        )  # in case rounding leaves no other token
        mass = tl.sum(wide, 0)
        is_found = passed + mass > target
        if is_found:
            reached = (passed + tl.cumsum(wide, 0) > target) & (weights > 0)
            position = tl.minimum(position, tl.min(tl.where(reached, positions, NOWHERE), 0))
        passed += mass
        start += BLOCK
    token = tl.load(listed + position, mask=position < in_list, other=0)
    tl.store(out_pointer + row, tl.where(position < in_list, token, tl.minimum(position, width - 1)).to(tl.int64))
