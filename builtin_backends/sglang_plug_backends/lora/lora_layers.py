"""The layers of a model that adapters may change, and their names in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sglang_plug import AdaptableLayer, Attention, Kernels, Model
from sglang_plug.layers import Linear


def unfused(kernels: Kernels) -> Kernels:
    """Return ``kernels`` without the product that includes the activation, because adapters act between the two."""
    return replace(kernels, pack_gated=None)


def adaptable_layers(model: Model) -> dict[str, Linear]:
    """Return by path the matrices of the numbered blocks that attend to the KV pool.

    Their inputs are the step's tokens, one row for each. Embeddings, heads, routers, experts and image encoders are not
    among them.
    """
    attending = (name.split(".") for name, module in model.named_modules() if isinstance(module, Attention))
    blocks = {block for path in attending if (block := _block(path))}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Linear) and module.role == "linear" and _block(name.split(".")) in blocks
    }


def described(model: Model, layers: dict[str, Linear]) -> list[AdaptableLayer]:
    """Describe ``layers`` for adapter formats."""
    return [_described(model, name, layer) for name, layer in layers.items()]


def _described(model: Model, name: str, layer: Linear) -> AdaptableLayer:
    shards = model.checkpoint_paths(name, layer.parts)
    whole = slice(0, layer.size_out)
    return AdaptableLayer(
        name=name,
        size_in=layer.size_in,
        size_out=layer.size_out,
        parts={alias: whole if shard is None else layer.parts[shard] for alias, shard in shards.items()},
        inputs=layer.input_shard,
        outputs={alias: own for alias, shard in shards.items() if (own := layer.output_shard(shard)) is not None},
    )


def _block(path: Sequence[str]) -> tuple[str, ...]:
    """Return a module's path up to its last number; empty if there is none."""
    last = max((index for index, part in enumerate(path) if part.isdigit()), default=-1)
    return tuple(path[: last + 1])
