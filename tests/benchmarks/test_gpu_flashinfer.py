from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from benchmarks import gpu_flashinfer
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
def found(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """What there is to compile, on a machine that lacks cuRAND's headers."""
    specs = [Spec("decode"), Spec("carried", is_aot=True)]

    def listed() -> Iterator[Spec]:
        assert os.environ["FLASHINFER_EXTRA_CUDAFLAGS"] == "-isystem headers", "too late"
        yield from specs

    monkeypatch.setattr(gpu_flashinfer, "specs", listed)
    monkeypatch.setattr(toolkit, "complete_toolkit", lambda: {"FLASHINFER_EXTRA_CUDAFLAGS": "-isystem headers"})
    for name in ("FLASHINFER_EXTRA_CUDAFLAGS", "MAX_JOBS"):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    return specs


def test_what_is_not_there_is_compiled(found: list[Spec]) -> None:
    assert list(gpu_flashinfer.modules("cpu")) == ["decode", "carried"]
    assert [one.built for one in found] == [True, False]
    assert int(os.environ["MAX_JOBS"]) >= 1


def test_what_cannot_be_compiled_is_named(found: list[Spec]) -> None:
    found.append(Spec("prefill", error="x" * 1000 + "ld: cannot find -lcuda"))
    with pytest.raises(RuntimeError, match=r"1 of 3 modules .*'prefill': 'x{400,}ld: cannot find -lcuda'"):
        gpu_flashinfer.modules("cpu")
    assert found[0].built
