"""Requests with a watermark for ``sglang-plug plugins test``."""

from __future__ import annotations

from typing import Any

from sglang_plug import SamplingParams


def requests() -> dict[str, Any]:
    """Return the arguments of ``check_logits_processor``."""
    options: list[dict[str, Any]] = [{}, {"gamma": 0.6, "delta": 5.0}, {"key": -(1 << 62)}]
    return {"cases": [SamplingParams(processor_fields={"watermark": fields}) for fields in options]}
