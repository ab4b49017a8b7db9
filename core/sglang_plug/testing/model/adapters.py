"""Conformance test of adapter formats: a token's result must not depend on other tokens, nor change other memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.adapters import (
    AdaptableLayer,
    Adapter,
    AdapterReader,
    AdapterRequest,
    Joinable,
    LayerAdapter,
    RankShard,
)
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.refusals import refusal_of

ROWS = 6
RANKS = 2
"""Ranks that share a layer."""
DAMAGE = b"\x00\xff damaged {"
MARGIN = 3
"""Number of columns to the right of a product, and of rows around it, that must not be written to."""


@torch.inference_mode()
def check_adapter_format(
    format: str | AdapterReader,
    paths: Sequence[str | Path],
    layers: Sequence[AdaptableLayer],
    *,
    settings: Any = None,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-4,
) -> None:
    """Read adapters and apply them to random numbers on the host: each alone, and together if they can be joined.

    Args:
        format: its target, or the name that an installed plugin declared it under.
        paths: folders of adapters, preferably several with different layers and sizes.
        layers: the layers that the adapters are for.
        settings: its settings, if ``format`` is a target that needs some.
        dtype: the dtype to compute in.
        tolerance: greatest difference between a token computed alone and among others, relative and absolute.

    Raises:
        AssertionError: names the first folder and layer that fail, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    read: Any = format
    if isinstance(format, str):
        component = Plugins.discover().get("adapter", format)
        read, settings = component.load(), component.settings()
    with TemporaryDirectory() as empty:
        assert read(_request(Path(empty), layers, dtype), settings) is None, (
            "an empty folder must be answered with None"
        )
    adapters = [_read(read, Path(path), layers, settings, dtype) for path in paths]
    for layer in layers:
        layer_adapters = [
            (str(path), adapter.layers[layer.name])
            for path, adapter in zip(paths, adapters, strict=True)
            if layer.name in adapter.layers
        ]
        for path, adapter in layer_adapters:
            _check_alone(adapter, layer, f"{path}, {layer.name}", dtype, tolerance)
        for kind in dict.fromkeys(type(adapter) for _, adapter in layer_adapters):
            if issubclass(kind, Joinable):
                joinable: list[Any] = [adapter for _, adapter in layer_adapters if type(adapter) is kind]
                _check_joined(kind, joinable, layer, dtype, tolerance)
    for folder, whole in zip(map(Path, paths), adapters, strict=True):
        _check_facts(whole, str(folder))
        _check_narrow(read, folder, layers, settings, whole)
        _check_own_part(read, folder, layers, settings, whole, dtype, tolerance)
        _check_damaged(read, folder, layers, settings, dtype)


def _request(path: Path, layers: Sequence[AdaptableLayer], dtype: torch.dtype) -> AdapterRequest:
    return AdapterRequest(path=path, layers=layers, device=torch.device("cpu"), dtype=dtype)


def _read(read: Any, path: Path, layers: Sequence[AdaptableLayer], settings: Any, dtype: torch.dtype) -> Adapter:
    adapter = read(_request(path, layers, dtype), settings)
    assert isinstance(adapter, Adapter), f"{path}: returned {type(adapter).__name__} instead of Adapter"
    assert adapter.layers, f"{path}: the adapter changes no layer"
    names = {layer_adapter.name for layer_adapter in layers}
    for name, layer_adapter in adapter.layers.items():
        assert name in names, f"{path}: changes {name!r}, which is not among the layers of the request"
        assert isinstance(layer_adapter, LayerAdapter), (
            f"{path}: returned {type(layer_adapter).__name__} instead of LayerAdapter for {name!r}"
        )
    return adapter


def _numbers(layer: AdaptableLayer, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(layer.size_in + layer.size_out)
    sizes = layer.size_in, layer.size_out
    x, y = (torch.randn(ROWS, size, generator=generator).to(dtype) for size in sizes)
    return x, y


def _apply(adapter: LayerAdapter, x: Tensor, y: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """Return the input that is multiplied instead of ``x``, and the changed product ``y``."""
    original = x.clone()
    changed = adapter.before(x)
    assert torch.equal(x, original), f"{where}: before() wrote to its input"
    assert (changed.shape, changed.dtype) == (x.shape, x.dtype), (
        f"{where}: before() returned {changed.dtype}{[*changed.shape]}"
    )
    product = y.clone()
    original = changed.clone()
    adapter.after(changed, product)
    assert torch.equal(changed, original), f"{where}: after() wrote to its input"
    return changed, product


def _check_alone(
    adapter: LayerAdapter, layer: AdaptableLayer, where: str, dtype: torch.dtype, tolerance: float
) -> None:
    x, y = _numbers(layer, dtype)
    changed, product = _apply(adapter, x, y, where)
    assert not (torch.equal(changed, x) and torch.equal(product, y)), f"{where}: changes neither input nor product"
    for row in range(ROWS):
        results = _apply(adapter, x[row : row + 1], y[row : row + 1], where)
        for result, expected in zip(results, (changed[row], product[row]), strict=True):
            assert _near(result[0], expected, tolerance), f"{where}: a token depends on those it is computed with"
    wide = torch.cat((torch.full_like(changed, 7), changed), 1)
    again = y.clone()
    adapter.after(wide[:, layer.size_in :], again)
    assert _near(again, product, tolerance), f"{where}: another result for an input in a part of a larger tensor"
    larger = torch.full((ROWS + 2 * MARGIN, layer.size_out + MARGIN), 7, dtype=dtype)
    part = larger[MARGIN:-MARGIN, : layer.size_out]
    part.copy_(y)
    adapter.after(changed, part)
    assert _near(part, product, tolerance), f"{where}: another result in a part of a larger tensor"
    part.fill_(7)
    assert bool((larger == 7).all()), f"{where}: after() wrote outside the product"


def _check_facts(adapter: Adapter, path: str) -> None:
    try:
        json.dumps(dict(adapter.facts))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{path}: facts must be plain data: {error}, in {adapter.facts}") from error


def _check_narrow(read: Any, path: Path, layers: Sequence[AdaptableLayer], settings: Any, adapter: Adapter) -> None:
    """An adapter's tensors have the dtype that the model computes in."""
    narrow = _read(read, path, layers, settings, torch.bfloat16)
    for layer in layers:
        if layer.name not in narrow.layers or layer.name not in adapter.layers:
            continue
        where = f"{path}, {layer.name} in bfloat16"
        x, y = _numbers(layer, torch.bfloat16)
        try:
            _, product = _apply(narrow.layers[layer.name], x, y, where)
        except Exception as error:
            if isinstance(error, AssertionError):
                raise
            raise AssertionError(f"{where}: raised {type(error).__name__}: {error}") from error
        assert product.dtype == torch.bfloat16 and bool(product.isfinite().all()), f"{where}: not finite"


def _check_own_part(
    read: Any,
    path: Path,
    layers: Sequence[AdaptableLayer],
    settings: Any,
    adapter: Adapter,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """Check that each of two ranks that share the output rows has its part of the effect, or is refused."""
    for rank in range(RANKS):
        halves = [_own_half(layer, rank) for layer in layers]
        own = [half for half, _ in halves if half is not None]
        if len(own) < len(layers):
            return
        try:
            part = read(_request(path, own, dtype), settings)
        except ConfigError:
            return
        for layer, (_, columns) in zip(layers, halves, strict=True):
            if layer.name not in adapter.layers:
                continue
            where = f"{path}, {layer.name}, rank {rank} of {RANKS} that share its outputs"
            assert layer.name in part.layers, f"{where}: the layer is not changed"
            x, y = _numbers(layer, dtype)
            changed, product = _apply(adapter.layers[layer.name], x, y, where)
            mine = _apply(part.layers[layer.name], x, y[:, columns].clone(), where)
            assert _near(mine[0], changed, tolerance) and _near(mine[1], product[:, columns], tolerance), (
                f"{where}: the result is not the rank's part of that of one rank; cut tensors with RankShard.of()"
            )


def _own_half(layer: AdaptableLayer, rank: int) -> tuple[AdaptableLayer | None, list[int]]:
    """Return the layer of one of two ranks, ``None`` if it cannot be halved, and its columns of the whole product."""
    parts, outputs, columns = dict[str, slice](), dict[str, RankShard](), list[int]()
    if layer.outputs or layer.inputs is not None:
        return None, columns
    for name, whole in layer.parts.items():
        size = whole.stop - whole.start
        if size % RANKS:
            return None, columns
        piece = slice(rank * size // RANKS, (rank + 1) * size // RANKS)
        outputs[name] = RankShard((piece,), size)
        parts[name] = slice(len(columns), len(columns) + size // RANKS)
        columns += range(whole.start + piece.start, whole.start + piece.stop)
    return replace(layer, size_out=len(columns), parts=parts, outputs=outputs), columns


def _check_damaged(read: Any, path: Path, layers: Sequence[AdaptableLayer], settings: Any, dtype: torch.dtype) -> None:
    """A damaged file is refused with ``ConfigError``, and with nothing else; it may not matter."""
    for name in sorted(file.name for file in path.glob("*") if file.is_file()):
        with TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(path, Path(folder, "copy")))
            (copy / name).write_bytes(DAMAGE)
            refusal_of(partial(read, _request(copy, layers, dtype), settings), ConfigError, f"{path}: {name}, damaged,")


def _check_joined(
    kind: type[Joinable], adapters: list[Any], layer: AdaptableLayer, dtype: torch.dtype, tolerance: float
) -> None:
    where = f"{layer.name}, {kind.__name__}.join of {len(adapters)}"
    x, y = _numbers(layer, dtype)
    for adapter in adapters:
        assert torch.equal(adapter.before(x), x), f"{where}: what is joined must leave inputs as they are"
    for which in _assignments(len(adapters)):
        product = y.clone()
        kind.join(adapters)(x, product, torch.tensor(which))
        for row, number in enumerate(which):
            expected = y[row : row + 1].clone()
            if number < len(adapters):
                adapters[number].after(x[row : row + 1], expected)
            assert _near(product[row], expected[0], tolerance), f"{where}: rows of {which} are not as each alone"


def _assignments(count: int) -> Iterator[list[int]]:
    """Yield the adapter of each row: the same one, none, mixed."""
    for number in range(count + 1):
        yield [number] * ROWS
    yield [row % (count + 1) for row in range(ROWS)]


def _near(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    return torch.allclose(actual, expected, rtol=tolerance, atol=tolerance)
