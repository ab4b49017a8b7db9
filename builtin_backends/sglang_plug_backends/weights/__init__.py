"""Weight loaders: safetensors files, and random numbers for trying a model without its weights."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, WeightsSpec, hookimpl


@hookimpl
def register_weight_loaders() -> Iterator[WeightsSpec]:
    yield WeightsSpec(
        name="safetensors",
        target="sglang_plug_backends.weights.safetensors:load_safetensors",
        detects="sglang_plug_backends.weights.safetensors:detect_safetensors",
        summary="streams the checkpoint's safetensors files, one tensor at a time",
        needs=("safetensors",),
    )
    yield WeightsSpec(
        name="dummy",
        target="sglang_plug_backends.weights.dummy:load_dummy",
        summary="random weights; the checkpoint needs only its config.json",
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return "safetensors" if kind == "weights" else None
