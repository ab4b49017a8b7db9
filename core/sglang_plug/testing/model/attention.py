"""Conformance test of attention backends: outputs, stored keys and values, and freedom from hidden state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.attention import (
    Attention,
    AttentionBackend,
    FusedStoreCapable,
    GraphCapable,
    LSECapable,
    ReplayCapable,
)
from sglang_plug.contracts.model.batch import ForwardBatch, KVPool, narrowed, widened
from sglang_plug.contracts.model.model import BuildEnv
from sglang_plug.plugins.registry import Plugins

from .attention_cases import (
    Case,
    Lengths,
    decoder_cases,
    encoder_cases,
    graph_cases,
    lse_cases,
    replay_cases,
    stored_cases,
)
from .attention_inputs import ShuffledSlots, make_batch
from .attention_reference import attend
from .replay import check_replay

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-5, 1e-5),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (5e-3, 5e-3),
    torch.bfloat16: (3e-2, 2e-2),
}
"""Absolute and relative error that is allowed for each dtype."""
K_SCALE, V_SCALE = 0.3, 0.7
"""Scales of a pool of another dtype in the first layer; each later layer has half of it. They are not powers of two, so
that multiplying rounds."""
PEAK = 16.0
"""Factor of the queries of peaked cases: the greatest scores are near 300."""
STRAY_VALUE = 50.0
"""Content of slots that belong to no sequence: reading one shows in the output."""


@torch.inference_mode()
def check_attention_backend(
    name_or_class: str | type[AttentionBackend],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    settings: Any = None,
    encoder: bool = False,
    only: Callable[[Case], bool] | None = None,
) -> None:
    """Run a backend through decode, prefill, chunks, mixed batches, head layouts, windows, caps and shared prefixes.

    A ``GraphCapable`` backend is also tested with a static plan, which on CUDA is captured, refreshed and replayed; a
    ``ReplayCapable`` one with a recorded forward pass; a ``FusedStoreCapable`` one with keys and values that are in the
    pool already; a ``LSECapable`` one with sinks.

    Args:
        name_or_class: the name a plugin declared, or the class itself.
        device: device of the tensors.
        dtype: dtype of queries, keys and values; one of float64, float32, float16, bfloat16.
        kv_dtype: dtype of the KV pool, for backends that declare others than that of queries; ``None``: the same.
        settings: passed to the backend; ``None`` and a name: the settings it declares, with their defaults.
        encoder: whether the backend also supports bidirectional attention without a pool.
        only: selects the cases to run; ``None``: all.

    Raises:
        AssertionError: names the first case that fails, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    backend, settings = _resolve(name_or_class, settings)
    graphs = graph_cases() if issubclass(backend, GraphCapable) else ()
    replays = replay_cases() if issubclass(backend, ReplayCapable) else ()
    stored = stored_cases() if issubclass(backend, FusedStoreCapable) else ()
    with_lse = lse_cases(issubclass(backend, GraphCapable)) if issubclass(backend, LSECapable) else ()
    for case in filter(
        only, chain(decoder_cases(), graphs, replays, stored, with_lse, encoder_cases() if encoder else ())
    ):
        if case.peaked and dtype.itemsize < torch.float32.itemsize:
            continue  # a backend may round its scores to the dtype
        try:
            case = replace(case, kv_dtype=kv_dtype if case.pool else None)
            _check(case, backend, torch.device(device), dtype, settings)
        except Exception as error:
            problem = f"raised {type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
            raise AssertionError(f"{backend.__name__} fails {case.name!r} ({dtype}): {problem}") from error


def _resolve(name_or_class: str | type[AttentionBackend], settings: Any) -> tuple[type[AttentionBackend], Any]:
    if not isinstance(name_or_class, str):
        return name_or_class, settings
    component = Plugins.discover().get("attention", name_or_class)
    return component.load(AttentionBackend), component.settings() if settings is None else settings


@dataclass(frozen=True, slots=True)
class Step:
    """A batch, and each layer's inputs."""

    batch: ForwardBatch
    inputs: list[tuple[Tensor, Tensor, Tensor]]
    sinks: Tensor | None
    """The sinks of every layer."""


def _check(
    case: Case, backend_class: type[AttentionBackend], device: torch.device, dtype: torch.dtype, settings: Any
) -> None:
    try:
        backend = backend_class(case.shape, device, settings)
    except ConfigError:
        if case.refusable:
            return
        raise
    env = BuildEnv(attention=backend)
    scale = 1.3 * case.dim**-0.5  # not the usual one: a backend that does not ask the layer shows
    layers = [
        Attention(env, index, scale=scale, causal=options.causal, window=options.window, softcap=options.softcap)
        for index, options in enumerate(case.layers)
    ]
    if case.graph:
        for layer in layers:
            _check_graph(backend, layer, *_steps(case, device, dtype))
        return
    steps = list(_steps(case, device, dtype))
    if case.replay:
        check_replay(case, backend, layers, [step.batch for step in steps], dtype)
        return
    for step in steps:
        backend.plan(step.batch)
    run = partial(_run_after_store, backend) if case.stored else _run
    for number, step in enumerate(steps):
        where = f", batch {number + 1} of {len(steps)}" if len(steps) > 1 else ""
        for layer in layers:
            _check_run(partial(run, layer, step), layer, step, where)


def _run_after_store(backend: AttentionBackend, layer: Attention, step: Step) -> Tensor:
    assert isinstance(backend, FusedStoreCapable) and step.batch.kv is not None
    q, k, v = step.inputs[layer.index]
    step.batch.kv.store(layer.index, k, v, step.batch.slots)
    return backend.run_after_store(layer, q, k, v, step.batch)


def _run(layer: Attention, step: Step) -> Tensor:
    q, k, v = step.inputs[layer.index]
    if step.sinks is not None:
        return layer.with_sinks(q, k, v, step.sinks, step.batch)
    output: Tensor = layer(q, k, v, step.batch)
    return output


def _check_run(run: Callable[[], Tensor], layer: Attention, step: Step, where: str) -> None:
    where = f"layer {layer.index}{where}"
    expected_pool, expected = _expected_pool(step, layer.index), _expected_output(step, layer)
    copies = [part.clone() for part in step.inputs[layer.index]]
    output = run()
    for name, part, before in zip("qkv", step.inputs[layer.index], copies, strict=True):
        assert torch.equal(part, before), f"{where}: the input {name} was written to"
    _compare_output(output, expected, step.batch, step.inputs[layer.index][0].dtype, where)
    _compare_pool(step.batch.kv, expected_pool, step.batch.slots, where)


def _check_graph(backend: AttentionBackend, layer: Attention, static: Step, following: Step) -> None:
    """Plan ``static``, copy ``following`` into it, refresh, and run the static plan."""
    assert isinstance(backend, GraphCapable)
    backend.static_plan(static.batch)
    run: Callable[[], Tensor] = partial(_run, layer, static)
    _check_run(run, layer, static, ", static plan")
    if static.batch.slots.is_cuda:
        run = _captured(run)
    for name in ("input_ids", "positions", "slots", "tables"):
        getattr(static.batch, name).copy_(getattr(following.batch, name))
    static.batch.kv_lens[:] = following.batch.kv_lens
    for mine, theirs in zip(static.inputs[layer.index], following.inputs[layer.index], strict=True):
        mine.copy_(theirs)
    backend.refresh(static.batch)
    _check_run(run, layer, static, ", refreshed plan")


def _captured(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


def _steps(case: Case, device: torch.device, dtype: torch.dtype) -> Iterator[Step]:
    generator = torch.Generator().manual_seed(len(case.name))
    contexts = list(_contexts(case, generator))
    pool = _pool(case, contexts, generator, device, dtype) if case.pool else None
    for lengths, rows in zip(case.batches, contexts, strict=True):
        new = [query for query, _ in lengths]
        batch = make_batch(rows, new, kv=pool, page_size=case.page_size, device=device)
        inputs = [_inputs(case, sum(new), generator, device, dtype) for _ in case.layers]
        if pool is not None and case.kv_dtype is not None:
            for layer, (_, k, v) in enumerate(inputs):
                _make_exact(k, pool.k[layer].dtype, pool.k_scale[layer])
                _make_exact(v, pool.v[layer].dtype, pool.v_scale[layer])
        sinks = torch.linspace(-1.0, 4.0, case.heads).to(device, dtype) if case.sinks else None
        yield Step(batch, inputs, sinks)


def _contexts(case: Case, generator: torch.Generator) -> Iterator[list[list[int]]]:
    """Yield for each batch the slots of each sequence."""
    every: Lengths = tuple(chain(*case.batches))
    slots = ShuffledSlots(sum(total for _, total in every), len(every), case.page_size, generator)
    common: list[int] = []
    slots.extend(common, case.shared)
    for lengths in case.batches:
        rows = [list(common) for _ in lengths]
        for row, (_, total) in zip(rows, lengths, strict=True):
            slots.extend(row, total)
        yield rows


def _pool(
    case: Case, contexts: list[list[list[int]]], generator: torch.Generator, device: torch.device, dtype: torch.dtype
) -> KVPool:
    owned = sorted({slot for rows in contexts for row in rows for slot in row})
    slots = (max(owned) // case.page_size + 2) * case.page_size
    pool = KVPool.of(case.shape, slots=slots, dtype=dtype, device=device)
    if case.kv_dtype is not None:
        values = K_SCALE if case.values_in_keys else V_SCALE
        pool.k_scale[:] = [K_SCALE / 2**layer for layer in range(len(pool.k))]
        pool.v_scale[:] = [values / 2**layer for layer in range(len(pool.v))]
    for part in chain(pool.k, pool.v):
        part.fill_(STRAY_VALUE)
        content = torch.randn(len(owned), *part.shape[1:], generator=generator)
        if case.peaked:
            content.mul_(2).round_()
        _put(part, torch.tensor(owned, device=device), content.to(device, part.dtype))
    return pool


def _put(pool: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Assign ``pool[slots] = rows``, in any dtype."""
    if pool.dtype.itemsize == 1:
        pool, rows = pool.view(torch.uint8), rows.view(torch.uint8)
    pool[slots] = rows


def _make_exact(x: Tensor, dtype: torch.dtype, scale: float) -> None:
    """Round to numbers that a pool can represent, so that reading them from the pool makes no difference."""
    x.copy_(widened(narrowed(x, dtype, scale), x.dtype, scale))


def _inputs(
    case: Case, tokens: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of one packed projection, as models pass them: not contiguous."""
    value_dim = case.value_dim or case.dim
    widths = [case.heads * case.dim, case.kv_heads * case.dim, case.kv_heads * value_dim]
    packed = torch.randn(tokens, sum(widths), generator=generator).to(device, dtype)
    parts = torch.split(packed, widths, dim=-1)
    if case.peaked:
        parts[0].mul_(2).round_().mul_(PEAK)
        parts[1].mul_(2).round_()
    q, k = parts[0].view(tokens, case.heads, case.dim), parts[1].view(tokens, case.kv_heads, case.dim)
    return q, k, k[..., :value_dim] if case.values_in_keys else parts[2].view(tokens, case.kv_heads, value_dim)


def _expected_output(step: Step, layer: Attention) -> Tensor:
    """Return ``[T, heads, value_dim]``; contexts come from the pool before the backend writes to it."""
    batch, (q, k, v) = step.batch, step.inputs[layer.index]
    outputs, start = [], 0
    for row, (new, total) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
        end = start + new
        keys, values = k[start:end], v[start:end]
        if batch.kv is not None:
            earlier = batch.tables[row, : total - new]
            kv, index = batch.kv, layer.index
            keys = torch.cat((widened(kv.k[index][earlier], k.dtype, kv.k_scale[index]), keys))
            values = torch.cat((widened(kv.v[index][earlier], v.dtype, kv.v_scale[index]), values))
        outputs.append(attend(layer, q[start:end], keys, values, step.sinks))
        start = end
    return torch.cat(outputs)


def _expected_pool(step: Step, layer: int) -> list[Tensor]:
    """Return keys, then values, of every layer, after the backend has run ``layer``."""
    kv = step.batch.kv
    if kv is None:
        return []
    _, k, v = step.inputs[layer]
    keys, values = [part.clone() for part in kv.k], [part.clone() for part in kv.v]
    for part, rows, scale in ((keys[layer], k, kv.k_scale[layer]), (values[layer], v, kv.v_scale[layer])):
        _put(part, step.batch.slots, rows if rows.dtype == part.dtype else narrowed(rows, part.dtype, scale))
    return keys + values


def _compare_output(output: Tensor, expected: Tensor, batch: ForwardBatch, dtype: torch.dtype, where: str) -> None:
    assert isinstance(output, Tensor), f"{where}: run() returned {type(output).__name__}, not a tensor"
    assert output.shape == expected.shape, f"{where}: output is {list(output.shape)}, not {list(expected.shape)}"
    assert output.dtype == dtype, f"{where}: output is {output.dtype}"
    absolute, relative = TOLERANCES[dtype]
    error = (output.to("cpu", torch.float64) - expected).abs()
    wrong = ~(error <= absolute + relative * expected.abs())  # NaN is wrong too
    if not wrong.any():
        return
    token, head, index = (int(index) for index in wrong.nonzero()[0])
    sequence = torch.repeat_interleave(torch.tensor(batch.query_lens))[token].item()
    raise AssertionError(
        f"{where}: {int(wrong.sum())} of {wrong.numel()} outputs are wrong, first at token {token} "
        f"(sequence {sequence}), head {head}, index {index}: {output[token, head, index].item():.6g} "
        f"instead of {expected[token, head, index].item():.6g}; new tokens {batch.query_lens}, contexts {batch.kv_lens}"
    )


def _compare_pool(pool: KVPool | None, expected: list[Tensor], slots: Tensor, where: str) -> None:
    """Check that every slot of every layer, except slot 0, has the expected content."""
    if pool is None:
        return
    names = [f"{name} of layer {index}" for name, part in (("k", pool.k), ("v", pool.v)) for index in range(len(part))]
    for name, actual, reference in zip(names, pool.k + pool.v, expected, strict=True):
        changed = (actual.float() != reference.float()).flatten(1).any(1)
        changed[0] = False
        if changed.any():
            slot = int(changed.nonzero()[0])
            problem = (
                "was not written" if slot in slots.tolist() else "was changed, but is not one of the batch's slots"
            )
            raise AssertionError(f"{where}: pool, {name}: slot {slot} {problem}")
