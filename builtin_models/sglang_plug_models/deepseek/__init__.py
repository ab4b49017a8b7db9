"""DeepSeek-V2, DeepSeek-V2-Lite and DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="DeepseekV2ForCausalLM",
        target=f"{__name__}.model:DeepseekV2",
        summary="DeepSeek-V2 and DeepSeek-V2-Lite",
        parallel=True,
    )
    yield ModelSpec(
        name="DeepseekV3ForCausalLM",
        target=f"{__name__}.model:DeepseekV3",
        summary="DeepSeek-V3 and DeepSeek-R1",
        parallel=True,
    )
