"""gpt-oss."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="GptOssForCausalLM", target=f"{__name__}.model:GptOss", summary="gpt-oss 20b and 120b", parallel=True
    )
