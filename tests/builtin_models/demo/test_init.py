from __future__ import annotations

from pathlib import Path

import sglang_plug_models.demo
from sglang_plug import Facts, Plugins


def test_demo_is_served_when_no_model_is_named() -> None:
    chosen = Plugins.discover().choose("model-path", Facts())
    assert chosen == str(Path(sglang_plug_models.demo.__file__).parent / "sglang-plug-demo")
