from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from benchmarks.gpu import flashinfer_build
from sglang_plug_backends.flashinfer import toolkit


@dataclass
class Spec:
    """A module that FlashInfer could compile."""

    name: str
    is_aot: bool = False
    error: str = ""
    built: bool = False

    def build(self, verbose: bool) -> None:
        if self.error:
            raise RuntimeError(self.error)
        self.built = True


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """Return the modules to compile on a machine without cuRAND's headers."""
    specs = [Spec("decode"), Spec("carried", is_aot=True)]

    def listed() -> Iterator[Spec]:
        assert os.environ["FLASHINFER_EXTRA_CUDAFLAGS"] == "-isystem headers", "too late"
        yield from specs

    monkeypatch.setattr(flashinfer_build, "specs", listed)
    monkeypatch.setattr(toolkit, "complete_toolkit", lambda: {"FLASHINFER_EXTRA_CUDAFLAGS": "-isystem headers"})
    for name in ("FLASHINFER_EXTRA_CUDAFLAGS", "MAX_JOBS"):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    return specs


def test_missing_modules_are_compiled(modules: list[Spec]) -> None:
    assert list(flashinfer_build.modules("cpu")) == ["decode", "carried"]
    assert [result.built for result in modules] == [True, False]
    assert int(os.environ["MAX_JOBS"]) >= 1


def test_modules_that_fail_to_compile_are_named(modules: list[Spec]) -> None:
    modules.append(Spec("prefill", error="x" * 1000 + "ld: cannot find -lcuda"))
    with pytest.raises(RuntimeError, match=r"1 of 3 modules .*'prefill': 'x{400,}ld: cannot find -lcuda'"):
        flashinfer_build.modules("cpu")
    assert modules[0].built
