from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BACKEND = "sglang_plug_backends.flashinfer.attention"


@pytest.fixture
def fake() -> ModuleType:
    """Return the stand-in's module."""
    name = "flashinfer_stand_in"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("fake.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def backend(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the backend's module, imported with the stand-in instead of FlashInfer."""
    monkeypatch.setitem(sys.modules, "flashinfer", fake.module())
    monkeypatch.delitem(sys.modules, BACKEND, raising=False)
    yield importlib.import_module(BACKEND)
    sys.modules.pop(BACKEND, None)
