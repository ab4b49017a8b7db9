"""Current limits of this machine: read bandwidth and matmul rate, needed to interpret other figures.

Run as ``python -m benchmarks.common.probe``. Bandwidth is the best of several ways to read a gigabyte once, the matmul
rate the best of several row counts and layouts; each is reported. All operations alternate, round after round, so that
a slow second on a shared machine does not decide between them. The limit is the best round, because a bound that noise
can lower is none.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common.report import parser, table, write_json

GIB = 1 << 30
WIDE, NARROW = 8192, 2048
"""Shape of the probed weights: an MLP of Llama-3.2-1B."""
ROWS = (1, 32, 512, 2048)
CUDA_ROWS = (1, 32, 512, 8192)
SECONDS_PER_POINT = 0.2
"""Seconds per operation and round; it runs as often as fits, but at least once."""
MAX_AT_ONCE = 200


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
        """Return the best bfloat16 rate for any number of rows, for ``bounds``."""
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
    best = max((read_call for read_call in reads if not read_call.name.startswith("copy")), key=lambda item: item.best)
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
            int(product.name.split(", ")[1].split()[0]): product.best
            for product in products
            if product.name.startswith("bfloat16") and product.name.endswith("packed")
        },
        points=(*reads, *products),
    )


def quick_probe() -> Limits:
    """Measure the CPU's limits in a few seconds, without points that no bound uses."""
    return probe(rounds=2, gibibytes=0.5, rows=(32, 512, 2048), dtypes=(torch.bfloat16,))


@dataclass(frozen=True, slots=True)
class PackedLimits:
    """Limits of the same machine with product rates of oneDNN at the same number of rows."""

    limits: Limits

    @property
    def read_bandwidth(self) -> float:
        """Return the read bandwidth in bytes per second."""
        return self.limits.read_bandwidth

    def product_rate(self, rows: int) -> float:
        """Return the rate of the next smaller probed number of rows, or of the smallest."""
        probed = sorted(self.limits.packed)
        return self.limits.packed[max((item for item in probed if item <= rows), default=probed[0])]


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
    for operation in operations:
        _timed(operation.action, device, 1)  # warms caches, threads and kernels
        seconds = _timed(operation.action, device, 1)
        counts.append(max(1, min(MAX_AT_ONCE, round(SECONDS_PER_POINT / max(seconds, 1e-6)))))
    rates: list[list[float]] = [[] for _ in operations]
    for _ in range(rounds):
        for operation, count, rate_list in zip(operations, counts, rates, strict=True):
            rate_list.append(operation.work * count / _timed(operation.action, device, count))
    return [
        Point(item.name, item.unit, max(rate_list), statistics.median(rate_list))
        for item, rate_list in zip(operations, rates, strict=True)
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
    for name, pack in _linears(device, x.dtype):
        yield _matvec(name, [pack(weight, 1) for weight in weights], x)


def _matvec(name: str, multiply: Sequence[Multiply], x: Tensor) -> _Operation:
    size = len(multiply) * WIDE * NARROW * x.itemsize
    return _Operation(f"matvec bfloat16, {name}", "B/s", size, lambda: [item(x) for item in multiply])


# -- multiplying --------------------------------------------------------------------------------------------------


def _products(device: torch.device, rows: Sequence[int], dtypes: Sequence[torch.dtype]) -> Iterator[_Operation]:
    for dtype in dtypes:
        weight = torch.ones(WIDE, NARROW, dtype=dtype, device=device)
        for count in rows or (CUDA_ROWS if device.type == "cuda" else ROWS):
            x = torch.ones(count, NARROW, dtype=dtype, device=device)
            for name, pack in _linears(device, dtype):
                yield _matmul(name, pack(weight, count), x)


def _matmul(name: str, multiply: Multiply, x: Tensor) -> _Operation:
    dtype = str(x.dtype).removeprefix("torch.")
    work = 2.0 * len(x) * WIDE * NARROW
    return _Operation(f"{dtype} matmul, {len(x)} rows, {name}", "FLOP/s", work, lambda: multiply(x))


Multiply = Callable[[Tensor], Tensor]


def _linears(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[Tensor, int], Multiply]]]:
    """Yield ways to multiply by a weight of ``dtype``: torch's own, and oneDNN with its preferred layout."""
    yield "plain", _plain
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    if dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported():
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
    """Format the points as a table, followed by the limits."""
    rows = [(point.name, point.best / 1e9, point.median / 1e9, f"G{point.unit}") for point in limits.points]
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
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    limits = probe(args.device, rounds=args.rounds)
    print(show(limits))
    write_json(args.json, limits)


if __name__ == "__main__":
    main()
