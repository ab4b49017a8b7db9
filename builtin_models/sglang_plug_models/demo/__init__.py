"""The demo model: a small chat model that is served when no model is named."""

from __future__ import annotations

from pathlib import Path

from sglang_plug import Facts, hookimpl


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return str(Path(__file__).parent / "sglang-plug-demo") if kind == "model-path" else None
