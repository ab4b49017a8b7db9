"""What this machine can do right now: read bandwidth and matmul rate. Figures mean something only beside these.

Run as ``python -m benchmarks.probe``. Bandwidth is the best of several ways to read a gigabyte once, the matmul
rate the best of several row counts and layouts; each is reported. All operations take turns, round after round, so
that a slow second on a shared machine does not decide between them. The limit is the best round, because a bound
that noise can lower is none.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.report import parser, table, write_json

GIB = 1 << 30
WIDE, NARROW = 8192, 2048
"""Shape of the probed weights: an MLP of Llama-3.2-1B."""
ROWS = (1, 32, 512, 2048)
CUDA_ROWS = (1, 32, 512, 8192)
SECONDS_PER_POINT = 0.2
"""In each round an operation runs as often as fits into about this time, but at least once."""
MOST_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Point:
    """One probed operation, in ``unit`` (``B/s`` or ``FLOP/s``)."""

    name: str
    unit: str
    best: float
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that bounds are derived from."""

    device: str
    threads: int
    read_bandwidth: float
    """Bytes per second."""
    read_method: str
    matmul: dict[str, float]
    """dtype name -> the best rate in FLOP/s."""
    packed: dict[int, float]
    """Rows -> the rate in bfloat16 at which oneDNN multiplies so many by a packed matrix, in FLOP/s."""
    points: tuple[Point, ...]
    """Everything that was measured."""

    def product_rate(self, rows: int) -> float:
        """The best rate in bfloat16, whatever the number of rows: for ``bounds``."""
        return self.matmul["bfloat16"]


def probe(
    device: str = "cpu",
    *,
    rounds: int = 5,
    gibibytes: float = 1.0,
    rows: Sequence[int] = (),
    dtypes: Sequence[torch.dtype] = (torch.bfloat16, torch.float32),
) -> Limits:
    """Measure the machine; takes about half a minute and three times ``gibibytes`` of memory on a small CPU.

    ``device`` is ``"cpu"`` or a CUDA device; ``rows`` are those of the multiplied matrices, several sizes by default.
    """
    target = torch.device(device)
    with torch.inference_mode():
        reads = _measure(list(_reads(target, int(gibibytes * GIB))), target, rounds)
        products = _measure(list(_products(target, rows, dtypes)), target, rounds)
    best = max((one for one in reads if not one.name.startswith("copy")), key=lambda one: one.best)
    rates: dict[str, float] = {}
    for point in products:
        dtype = point.name.partition(" ")[0]
        rates[dtype] = max(rates.get(dtype, 0.0), point.best)
    return Limits(
        device=torch.cuda.get_device_name(target) if target.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        read_bandwidth=best.best,
        read_method=best.name,
        matmul=rates,
        packed={
            int(one.name.split(", ")[1].split()[0]): one.best
            for one in products
            if one.name.startswith("bfloat16") and one.name.endswith("packed")
        },
        points=(*reads, *products),
    )


def quick_probe() -> Limits:
    """The limits of the CPU in a few seconds, without the points that no bound is derived from."""
    return probe(rounds=2, gibibytes=0.5, rows=(32, 512, 2048), dtypes=(torch.bfloat16,))


@dataclass(frozen=True, slots=True)
class PackedLimits:
    """The same machine, if its products were as fast as oneDNN's with as many rows."""

    limits: Limits

    @property
    def read_bandwidth(self) -> float:
        """Bytes per second."""
        return self.limits.read_bandwidth

    def product_rate(self, rows: int) -> float:
        """Of the next smaller number of rows that was probed, or of the smallest."""
        probed = sorted(self.limits.packed)
        return self.limits.packed[max((one for one in probed if one <= rows), default=probed[0])]


# -- timing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Operation:
    name: str
    unit: str
    work: float
    """Bytes or FLOP of one call."""
    action: Callable[[], object]


def _measure(operations: Sequence[_Operation], device: torch.device, rounds: int) -> list[Point]:
    counts = []
    for one in operations:
        _timed(one.action, device, 1)  # warms caches, threads and kernels
        seconds = _timed(one.action, device, 1)
        counts.append(max(1, min(MOST_AT_ONCE, round(SECONDS_PER_POINT / max(seconds, 1e-6)))))
    rates: list[list[float]] = [[] for _ in operations]
    for _ in range(rounds):
        for one, count, found in zip(operations, counts, rates, strict=True):
            found.append(one.work * count / _timed(one.action, device, count))
    return [
        Point(one.name, one.unit, max(found), statistics.median(found))
        for one, found in zip(operations, rates, strict=True)
    ]


def _timed(action: Callable[[], object], device: torch.device, count: int) -> float:
    _synchronize(device)
    started = time.perf_counter()
    for _ in range(count):
        action()
    _synchronize(device)
    return time.perf_counter() - started


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -- reading ------------------------------------------------------------------------------------------------------


def _reads(device: torch.device, size: int) -> Iterator[_Operation]:
    block = torch.ones(size // 4, dtype=torch.float32, device=device)
    half, other = block.chunk(2)
    yield _Operation("sum float32", "B/s", block.nbytes, block.sum)
    yield _Operation("dot float32", "B/s", block.nbytes, lambda: torch.dot(half, other))
    yield _Operation("copy float32 (read + write)", "B/s", block.nbytes, lambda: other.copy_(half))
    count = max(1, size // (WIDE * NARROW * 2))
    weights = [torch.ones(WIDE, NARROW, dtype=torch.bfloat16, device=device) for _ in range(count)]
    x = torch.ones(1, NARROW, dtype=torch.bfloat16, device=device)
    for name, pack in _linears(device):
        yield _matvec(name, [pack(weight, 1) for weight in weights], x)


def _matvec(name: str, multiply: Sequence[Multiply], x: Tensor) -> _Operation:
    size = len(multiply) * WIDE * NARROW * x.itemsize
    return _Operation(f"matvec bfloat16, {name}", "B/s", size, lambda: [one(x) for one in multiply])


# -- multiplying --------------------------------------------------------------------------------------------------


def _products(device: torch.device, rows: Sequence[int], dtypes: Sequence[torch.dtype]) -> Iterator[_Operation]:
    for dtype in dtypes:
        weight = torch.ones(WIDE, NARROW, dtype=dtype, device=device)
        for count in rows or (CUDA_ROWS if device.type == "cuda" else ROWS):
            x = torch.ones(count, NARROW, dtype=dtype, device=device)
            for name, pack in _linears(device):
                yield _matmul(name, pack(weight, count), x)


def _matmul(name: str, multiply: Multiply, x: Tensor) -> _Operation:
    dtype = str(x.dtype).removeprefix("torch.")
    work = 2.0 * len(x) * WIDE * NARROW
    return _Operation(f"{dtype} matmul, {len(x)} rows, {name}", "FLOP/s", work, lambda: multiply(x))


Multiply = Callable[[Tensor], Tensor]


def _linears(device: torch.device) -> Iterator[tuple[str, Callable[[Tensor, int], Multiply]]]:
    """Ways to multiply by a weight: torch's own, and oneDNN with the weight in the layout that it prefers."""
    yield "plain", _plain
    if device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        yield "packed", _packed


def _plain(weight: Tensor, rows: int) -> Multiply:
    return lambda x: F.linear(x, weight)


def _packed(weight: Tensor, rows: int) -> Multiply:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)

    def multiply(x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return product

    return multiply


def show(limits: Limits) -> str:
    """The points as a table, and the limits below."""
    rows = [(one.name, one.best / 1e9, one.median / 1e9, f"G{one.unit}") for one in limits.points]
    rates = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {dtype}" for dtype, rate in limits.matmul.items())
    return (
        f"{table(('operation', 'best', 'median', 'unit'), rows)}\n"
        f"limits of {limits.device} with {limits.threads} threads: "
        f"read {limits.read_bandwidth / 1e9:.1f} GB/s ({limits.read_method}), {rates}"
    )


def main() -> None:
    """Probe and print."""
    options = parser(__doc__)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, help="torch threads; torch's default otherwise")
    given = options.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    limits = probe(given.device, rounds=given.rounds)
    print(show(limits))
    write_json(given.json, limits)


if __name__ == "__main__":
    main()
