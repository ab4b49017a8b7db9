"""The script for CUDA machines, on the host: a part's failure is reported and hides no other."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_ceilings import ceilings
from benchmarks.gpu_kernels import relative_error
from benchmarks.gpu_parts import conformance, environment, near, parity, prefix, speed, step


def test_checks_on_the_host() -> None:
    assert environment("cpu")["backends"]["torch"] == "available"
    assert conformance("cpu", "torch", "float32", "plain") == "passed"
    assert parity("cpu", "torch", "no-graphs")["equal"] is True
    found = near("cpu", "torch")
    assert found["tokens"] > 100 and found["best"] > 0.9 * found["tokens"]


def test_measurements_on_the_host() -> None:
    found = speed("cpu", "tiny", "torch")
    assert {one.failures for one in found.values()} == {0}
    assert all(one.output_rate > 0 and one.decode_step.count > 0 for one in found.values())
    assert prefix("cpu", "tiny", "torch")["speedup"] > 0
    steps = step("cpu", "tiny", "torch")
    assert steps["graphs"] is False and steps["steps"] == 11
    assert steps["host"] + steps["device"] == pytest.approx(steps["step"])
    limits = ceilings("cpu")
    assert limits["copy_bandwidth"] > 1e6 and limits["matmul_rate"] > 1e6


def test_what_is_not_a_number_is_an_error() -> None:
    assert relative_error(torch.ones(3), torch.ones(3)) == 0
    assert not relative_error(torch.tensor([1.0, torch.nan]), torch.ones(2)) <= 1.0


def options(out: Path, command: str = "check", **changed: Any) -> Namespace:
    given = {"out": out, "device": "cpu", "backends": ["torch"], "shapes": ["tiny"], "budget": 100.0}
    return Namespace(**{**given, "command": command, "part_limit": 50.0, **changed})


def test_order_of_the_parts(tmp_path: Path) -> None:
    parts = [" ".join(part) for part in gpu.wanted_parts(options(tmp_path, backends=["triton", "flashinfer"]))]
    assert parts[:3] == ["environment", "kernels", "conformance triton bfloat16"]
    assert "parity triton no-graphs" in parts and "near flashinfer graphs" in parts
    assert not any(part.startswith("parity flashinfer") for part in parts)  # it has no float32
    assert parts[-1] == "conformance flashinfer float16"
    given = options(tmp_path, "bench", backends=["flashinfer", "triton"], shapes=["llama-1B", "llama-8B"])
    parts = [" ".join(part) for part in gpu.wanted_parts(given)]
    assert parts[:4] == ["environment", "ceilings", "speed llama-1B flashinfer", "speed llama-8B flashinfer"]
    assert parts[4:7] == ["step llama-8B flashinfer", "prefix llama-8B flashinfer", "reference llama-8B"]


def test_a_failed_part_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_part(part: tuple[str, ...], device: str, seconds: float) -> dict[str, Any]:
        assert device == "cpu" and 0 < seconds <= 50.0
        if part[0] == "kernels":
            return {"part": "kernels", "ok": False, "error": "exit status 1", "trace": ["boom"], "seconds": 1.0}
        return {"part": " ".join(part), "ok": True, "result": "passed", "seconds": 1.0}

    monkeypatch.setattr(gpu, "run_part", run_part)
    outcomes = gpu.run_all(options(tmp_path))
    assert [one["ok"] for one in outcomes] == [True, False, True, True, True, True, True, True]
    written = json.loads((tmp_path / "gpu-check.json").read_text(encoding="utf-8"))
    assert written["parts"] == outcomes
    assert gpu.summary(outcomes[1]) == "FAILED  kernels: exit status 1 boom"


def test_no_part_is_started_without_time(tmp_path: Path) -> None:
    outcomes = gpu.run_all(options(tmp_path, "bench", budget=1.0))
    assert {one["error"] for one in outcomes} == {"no time left"}
    assert (tmp_path / "gpu-bench.json").is_file()


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
