"""The cases of the conformance test of attention backends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from sglang_plug.contracts.model.attention import AttentionShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOptions:
    """The options that differ between layers."""

    causal: bool = True
    window: int | None = None
    softcap: float | None = None


Lengths = tuple[tuple[int, int], ...]
"""Pairs ``(new tokens, whole context)`` of each sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One or more batches on one pool, and the layers that compute them."""

    name: str
    batches: tuple[Lengths, ...]
    """If there are several, all are planned before the first is run."""
    heads: int = 8
    kv_heads: int = 2
    dim: int = 64
    value_dim: int | None = None
    values_in_keys: bool = False
    layers: tuple[LayerOptions, ...] = (LayerOptions(),)
    page_size: int = 1
    shared: int = 0
    """Number of first tokens that all sequences share, slots included."""
    pool: bool = True
    graph: bool = False
    """The first of two batches is planned once for a CUDA graph, which then runs the second."""
    replay: bool = False
    """The batches are computed as replays of a recorded forward pass."""
    stored: bool = False
    """This step's keys and values are in the pool before the backend runs."""
    sinks: bool = False
    """Every layer has sinks."""
    peaked: bool = False
    """Scores are hundreds apart. Queries and keys are whole numbers, so that float32 hardly rounds the scores."""
    kv_dtype: torch.dtype | None = None
    """Dtype of the pool; ``None``: that of queries."""
    refusable: bool = False
    """The backend may refuse the shape with ``ConfigError``."""

    @property
    def shape(self) -> AttentionShape:
        """The geometry that the backend is built with."""
        return AttentionShape(
            heads=self.heads,
            kv_heads=self.kv_heads,
            dim=self.dim,
            value_dim=self.value_dim,
            values_in_keys=self.values_in_keys,
            layers=len(self.layers),
            kv_dtype=self.kv_dtype,
            sinks=self.sinks,
        )


DECODE: Lengths = ((1, 5), (1, 33), (1, 1), (1, 70))
PREFILL: Lengths = ((7, 7), (1, 1), (40, 40))
MIXED: Lengths = ((1, 30), (12, 12), (1, 9), (5, 41))
LONG: Lengths = ((1, 600), (20, 300), (1, 3))
TILES: Lengths = ((1, 64), (1, 128), (64, 64), (1, 257), (128, 128), (1, 256), (32, 160), (1, 65), (1, 512))
"""Lengths at which the tiles of kernels end, and the next ones."""

STEPS: dict[str, Lengths] = {
    "decode of one sequence": ((1, 19),),
    "decode of a sequence's first token": ((1, 1),),
    "ragged decode": DECODE,
    "prefill of one sequence": ((21, 21),),
    "ragged prefill": PREFILL,
    "prefill in chunks, of one sequence": ((9, 40),),
    "prefill in chunks": ((9, 40), (16, 17), (3, 80)),
    "prefill and decode in one batch": MIXED,
    "long contexts": LONG,
    "lengths at the ends of tiles": TILES,
}
HEADS = ((14, 2), (4, 4), (6, 1))
DIMS = (80, 128)
COMMON_DIMS = (64, 128)
"""Head dimensions that no backend may refuse."""


def decoder_cases() -> Iterator[Case]:
    """Yield the cases for every backend of a causal model."""
    for page_size in (1, 4):
        for name, lengths in STEPS.items():
            yield Case(name=f"{name}, page size {page_size}", batches=(lengths,), page_size=page_size)
    for name, lengths in {"mixed batch": MIXED, "decode": DECODE}.items():
        yield from _variants(Case(name=name, batches=(lengths,)))
    yield Case(name="sequences that share a prefix", batches=(((1, 30), (6, 31), (1, 28)),), shared=24)
    yield Case(
        name="sequences that share a prefix, page size 4",
        batches=(((1, 30), (6, 31), (1, 28)),),
        shared=24,
        page_size=4,
    )
    windows = (LayerOptions(), LayerOptions(window=8), LayerOptions(window=20, softcap=3.0), LayerOptions())
    yield Case(name="layers of different windows", batches=(MIXED,), layers=windows)
    yield Case(name="scores of hundreds", batches=(MIXED,), peaked=True)
    yield Case(name="two batches in flight", batches=(MIXED, PREFILL))
    yield Case(name="two batches in flight, decode", batches=(DECODE, ((1, 44), (1, 2), (1, 17), (1, 60))))
    yield from _latent_cases()


def graph_cases() -> Iterator[Case]:
    """Yield the additional cases of a ``GraphCapable`` backend."""
    batches: tuple[Lengths, ...] = (((1, 300), (1, 3), (1, 21)), ((1, 2), (1, 300), (1, 133)))
    yield Case(name="static plan, refreshed", batches=batches, graph=True)
    yield Case(
        name="static plan, refreshed, two layers",
        batches=batches,
        layers=(LayerOptions(window=16), LayerOptions()),
        page_size=4,
        graph=True,
    )


def replay_cases() -> Iterator[Case]:
    """Yield the additional cases of a ``ReplayCapable`` backend."""
    batches: tuple[Lengths, ...] = (MIXED, ((1, 19),), PREFILL, DECODE, ((9, 40), (16, 17), (3, 80)))
    yield Case(name="recorded forward pass", batches=batches, replay=True)
    windows = (LayerOptions(), LayerOptions(window=8), LayerOptions())
    yield Case(name="recorded forward pass, three layers", batches=batches, layers=windows, page_size=4, replay=True)


def stored_cases() -> Iterator[Case]:
    """Yield the additional cases of a ``FusedStoreCapable`` backend."""
    for name, lengths in {"decode": DECODE, "prefill": PREFILL, "mixed batch": MIXED}.items():
        yield Case(name=f"{name}, keys and values stored before", batches=(lengths,), stored=True)
    windows = (LayerOptions(), LayerOptions(window=8))
    yield Case(name="two layers, stored before", batches=(MIXED,), layers=windows, page_size=4, stored=True)


def lse_cases(graphs: bool) -> Iterator[Case]:
    """Yield the additional cases of a ``LSECapable`` backend; ``graphs``: it is ``GraphCapable``, too."""
    layers = (LayerOptions(), LayerOptions(window=8), LayerOptions(window=20, softcap=3.0))
    base = Case(name="sinks", batches=(MIXED,), layers=layers, sinks=True)
    for name, lengths in {"decode": DECODE, "prefill": PREFILL, "mixed batch": MIXED, "long contexts": LONG}.items():
        yield replace(base, name=f"{name}, sinks", batches=(lengths,))
    yield replace(base, name="mixed batch, page size 4, sinks", page_size=4)
    yield replace(base, name="mixed batch, 6 heads on 1, sinks", heads=6, kv_heads=1)
    prefixed: Lengths = ((1, 200), (1, 180), (1, 191))
    yield replace(base, name="decodes that share a prefix, sinks", batches=(prefixed,), shared=160)
    latent = replace(base, kv_heads=1, dim=48, value_dim=32, values_in_keys=True, refusable=True)
    yield replace(latent, name="mixed batch, values in keys, sinks")
    if graphs:
        batches: tuple[Lengths, ...] = (((1, 300), (1, 3), (1, 21)), ((1, 2), (1, 300), (1, 133)))
        yield replace(base, name="static plan, refreshed, sinks", batches=batches, graph=True)


def encoder_cases() -> Iterator[Case]:
    """Yield the additional cases of a backend of a bidirectional model, without a pool."""
    base = Case(name="encoder", batches=(PREFILL,), kv_heads=8, layers=(LayerOptions(causal=False),), pool=False)
    yield replace(base, name="encoder, one sequence", batches=(((23, 23),),))
    yield replace(base, name="encoder, ragged")
    yield replace(base, name="encoder, grouped heads", kv_heads=2)
    yield replace(base, name="encoder, two batches in flight", batches=(PREFILL, ((5, 5), (50, 50))))


def _latent_cases() -> Iterator[Case]:
    """Yield cases of multi-head latent attention: one key head, whose first numbers are the values."""
    latent = replace(
        Case(name="values in keys", batches=(MIXED,)),
        kv_heads=1,
        dim=48,
        value_dim=32,
        values_in_keys=True,
        refusable=True,
    )
    for name, lengths in {"mixed batch": MIXED, "decode": DECODE, "prefill": PREFILL, "long contexts": LONG}.items():
        yield replace(latent, name=f"{name}, values in keys", batches=(lengths,))
    yield replace(latent, name="page size 4, values in keys", page_size=4)
    prefixed = replace(latent, batches=(((1, 30), (6, 31), (1, 28)),), shared=24)
    yield replace(prefixed, name="sequences that share a prefix, values in keys")
    for heads, capped in ((16, None), (40, 2.0)):
        layers = (LayerOptions(), LayerOptions(window=8, softcap=capped))
        wide = replace(latent, heads=heads, dim=576, value_dim=512, layers=layers)
        yield replace(wide, name=f"{heads} heads on values of 512 in keys of 576")


def _variants(base: Case) -> Iterator[Case]:
    for heads, kv_heads in HEADS:
        yield replace(base, name=f"{base.name}, {heads} heads on {kv_heads}", heads=heads, kv_heads=kv_heads)
    for dim in DIMS:
        yield replace(base, name=f"{base.name}, head dimension {dim}", dim=dim, refusable=dim not in COMMON_DIMS)
    yield replace(base, name=f"{base.name}, values of another dimension", value_dim=48, refusable=True)
    options = {
        "window of 8": LayerOptions(window=8),
        "window of 1": LayerOptions(window=1),
        "window larger than the context": LayerOptions(window=1000),
        "capped logits": LayerOptions(softcap=2.0),
        "window and capped logits": LayerOptions(window=16, softcap=2.0),
    }
    for name, layer in options.items():
        yield replace(base, name=f"{base.name}, {name}", layers=(layer,))
