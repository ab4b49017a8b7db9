"""Checkpoints and tokenizers in the Hugging Face layout, read from a local folder or the hub."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import CheckpointSpec, Facts, TokenizerSpec, hookimpl


@hookimpl
def register_weight_loaders() -> Iterator[CheckpointSpec]:
    yield CheckpointSpec(
        name="huggingface",
        target="sglang_plug_backends.huggingface.checkpoint:open_checkpoint",
        detects="sglang_plug_backends.huggingface.detection:detect_checkpoint",
        summary="config.json and safetensors in a local folder, the hub's cache or the hub",
        needs=("transformers", "huggingface_hub"),
    )


@hookimpl
def register_tokenizers() -> Iterator[TokenizerSpec]:
    yield TokenizerSpec(
        name="huggingface",
        target="sglang_plug_backends.huggingface.tokenizer:load_tokenizer",
        summary="tokenizer.json and a Jinja chat template",
        needs=("transformers", "tokenizers", "jinja2"),
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return "huggingface" if kind in ("checkpoint", "tokenizer") else None
