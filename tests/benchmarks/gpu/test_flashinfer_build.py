from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.gpu.flashinfer_build import modules


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


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment of the compiler afterwards."""
    for name in ("FLASHINFER_EXTRA_CUDAFLAGS", "MAX_JOBS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def compiled(specs: Sequence[Spec]) -> Mapping[str, Any]:
    """Compile modules on a machine without cuRAND's headers."""

    def listed() -> Iterator[Spec]:
        assert os.environ["FLASHINFER_EXTRA_CUDAFLAGS"] == "-isystem headers", "too late"
        yield from specs

    return modules("cpu", listed=listed, toolkit=lambda: {"FLASHINFER_EXTRA_CUDAFLAGS": "-isystem headers"})


def test_missing_modules_are_compiled() -> None:
    specs = [Spec("decode"), Spec("carried", is_aot=True)]
    assert list(compiled(specs)) == ["decode", "carried"]
    assert [spec.built for spec in specs] == [True, False]
    assert int(os.environ["MAX_JOBS"]) >= 1


def test_modules_that_fail_to_compile_are_named() -> None:
    failing = Spec("prefill", error="x" * 1000 + "ld: cannot find -lcuda")
    specs = [Spec("decode"), Spec("carried", is_aot=True), failing]
    with pytest.raises(RuntimeError, match=r"1 of 3 modules .*'prefill': 'x{400,}ld: cannot find -lcuda'"):
        compiled(specs)
    assert specs[0].built
