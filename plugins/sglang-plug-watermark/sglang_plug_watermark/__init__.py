"""Declarations of a watermark for generated text (Kirchenbauer et al. 2023), and of a command that detects it."""

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
        summary="adds delta to the logits of a pseudo-random set of green tokens (Kirchenbauer et al., 2023)",
    )


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(
        name="detect-watermark",
        target=f"{__name__}.command:command",
        summary="test whether a text carries the watermark (z-score and p-value)",
    )
