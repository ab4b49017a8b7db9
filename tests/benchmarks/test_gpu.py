"""The script for CUDA machines, on the host: a part's failure is reported and hides no other."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts import conformance, environment, parity, speed


def test_parts_on_the_host() -> None:
    assert environment("cpu")["backends"]["torch"] == "available"
    assert conformance("cpu", "torch", "float32") == "passed"
    assert parity("cpu", "torch")["equal"] is True
    found = speed("cpu", "tiny", "torch")
    assert {one.failures for one in found.values()} == {0}
    assert all(one.output_rate > 0 and one.decode_step.count > 0 for one in found.values())


def options(out: Path, **changed: Any) -> Namespace:
    given = {"out": out, "device": "cpu", "backends": ["torch"], "shapes": ["tiny"], "budget": 100.0}
    return Namespace(**{**given, "part_limit": 50.0, **changed})


def test_a_failed_part_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_part(part: tuple[str, ...], device: str, seconds: float) -> dict[str, Any]:
        assert device == "cpu" and 0 < seconds <= 50.0
        if part[0] == "parity":
            return {"part": "parity", "ok": False, "error": "exit status 1", "trace": ["boom"], "seconds": 1.0}
        return {"part": " ".join(part), "ok": True, "result": "passed", "seconds": 1.0}

    monkeypatch.setattr(gpu, "run_part", run_part)
    outcomes = gpu.run_all(options(tmp_path))
    assert [one["ok"] for one in outcomes] == [True, True, True, True, False, True]
    written = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert written["parts"] == outcomes
    assert gpu.summary(outcomes[4]) == "FAILED  parity: exit status 1 boom"


def test_no_part_is_started_without_time(tmp_path: Path) -> None:
    outcomes = gpu.run_all(options(tmp_path, budget=1.0))
    assert {one["error"] for one in outcomes} == {"no time left"}


@pytest.mark.slow
def test_a_part_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(root)
    good = gpu.run_part(("environment",), "cpu", 60.0)
    assert good["ok"], good
    bad = gpu.run_part(("conformance", "nosuch", "float32"), "cpu", 60.0)
    assert not bad["ok"] and "no attention named 'nosuch'" in gpu.summary(bad)
    hung = gpu.run_part(("environment",), "cpu", 0.2)
    assert hung["error"] == "not done after 0 s"
