"""A watermark in generated text (Kirchenbauer et al. 2023), and a command that detects it. Declares only."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import CommandSpec, LogitsProcessorSpec, hookimpl

api_version = 1


@hookimpl
def register_logits_processors() -> Iterator[LogitsProcessorSpec]:
    yield LogitsProcessorSpec(
        name="watermark",
        target=f"{__name__}.processor:Watermark",
        settings=f"{__name__}.fields:WatermarkSettings",
        request_fields=f"{__name__}.fields:WatermarkFields",
        example=f"{__name__}.example:requests",
        summary="makes a part of the vocabulary likelier that depends on a key and the token before",
    )


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(
        name="detect-watermark", target=f"{__name__}.command:command", summary="say how likely a text is watermarked"
    )
