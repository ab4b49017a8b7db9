"""The script for CUDA machines, on the host: a part's failure is reported and hides no other."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.common.models import SHAPES
from benchmarks.gpu import run as gpu
from benchmarks.gpu.engine import agreement
from benchmarks.gpu.kernels.ceilings import ceilings
from benchmarks.gpu.kernels.correctness import relative_error
from benchmarks.gpu.kernels.moe import OTHERS, compare
from benchmarks.gpu.kernels.single_row import rows
from benchmarks.gpu.memory import start_and_serve
from benchmarks.gpu.parts import conformance, environment, near, overlap, parity, prefix, speed, step
from sglang_plug import Finish, Output

MIB = 1 << 20
MEMORY = {"total": 0, "stages": {}, "free_after_start": 0, "free_after_serving": 0, "tokens": 0, "captured": 0}
"""Result of a part that measures memory."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Tiles of the Triton plugin, which cannot be imported everywhere."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def test_checks_on_the_host() -> None:
    assert environment("cpu")["backends"]["torch"] == "available"
    assert conformance("cpu", "torch", "float32", "plain") == "passed"
    assert parity("cpu", "torch", "no-graphs")["equal"] is True
    result = near("cpu", "torch")
    assert result["tokens"] > 100 and result["best"] > 0.9 * result["tokens"]
    assert conformance("cpu", "torch", "float32", "plain", "fp8_e5m2") == "passed"
    assert near("cpu", "torch", "graphs", "fp8_e4m3")["best"] > 0.5 * result["tokens"]


def test_measurements_on_the_host() -> None:
    result = speed("cpu", "tiny", "torch")
    assert {item.failures for item in result.values()} == {0}
    assert all(item.output_rate > 0 and item.decode_step.count > 0 for item in result.values())
    assert prefix("cpu", "tiny", "torch")["speedup"] > 0
    steps = step("cpu", "tiny", "torch")
    assert steps["graphs"] is False and steps["overlap"] is True and steps["steps"] > 3
    assert 0 < steps["host"] <= steps["step"] and steps["device"] < steps["step"]
    measured = [(item["batch"], item["overlap"], item.get("constrained", False)) for item in steps["batches"]]
    assert measured == [(4, ahead, constrained) for constrained in (False, True) for ahead in (False, True)]
    compared = overlap("cpu", "tiny", "torch")
    assert compared["requests"] > 8 and compared["tokens"] > 100
    limits = ceilings("cpu")
    assert limits["copy_bandwidth"] > 1e6 and limits["matmul_rate"] > 1e6


def test_ways_of_multiplying_one_row() -> None:
    row = pytest.importorskip("sglang_plug_backends.triton.matrix_vector", reason="Triton is not installed")
    times = iter([2.0] * 100)
    outcome = rows("cpu", "tiny", seconds_of=lambda products: next(times))
    assert list(outcome) == [f"tiny, {matrix}" for matrix in ("qkv", "out", "gate and up", "down", "head")]
    for result in outcome.values():
        assert result["best"] == "library" and result["library_rate"] == result["best_rate"] > 0
        assert len(result["seconds"]) == 1 + len(row.TILES)


class Memory:
    """Memory of an idle device, except for a part that is never free."""

    def __init__(self, taken: int) -> None:
        self.taken = taken

    def total(self) -> int:
        return 100 * MIB

    def free(self) -> int:
        return 100 * MIB - self.taken

    def release(self) -> None:
        """Do nothing: nothing is cached."""


def testagreement_of_two_runs() -> None:
    def output(*tokens: int, finish: Finish | None = None) -> Output:
        return Output(id="0", tokens=tokens, finish=finish)

    length, stop = Finish(reason="length"), Finish(reason="stop")
    whole = [output(1, 2), output(3, finish=length)]
    assert agreement("x", whole, [output(1), output(2, 3, finish=length)]) == (3, 3)
    assert agreement("x", whole, [output(1, 5, 3, 4, finish=stop)]) == (1, 4)
    for other in ([output(1, 2, finish=length)], [output(1, 2, 3, finish=stop)]):
        with pytest.raises(AssertionError, match="became"):
            agreement("x", whole, other)
    with pytest.raises(AssertionError, match="error"):
        agreement("x", whole, [output(1, 2, 3, finish=Finish(reason="error", message="boom"))])


def test_memory_on_the_host() -> None:
    memory = Memory(10 * MIB)
    result = start_and_serve("cpu", SHAPES["tiny"], "torch", (4, 16, 8), lambda device: memory)
    assert result["total"] == 100 * MIB and result["free_after_start"] == result["free_after_serving"] == 90 * MIB
    stages = result["stages"]
    assert stages["before the start"] == 10 * MIB and stages["weights"] == stages["KV pool"] == 0
    assert result["tokens"] == 80 * MIB // SHAPES["tiny"].kv_bytes and result["captured"] == 0
    outcome = {"part": "memory tiny torch", "ok": True, "result": result, "seconds": 1.0}
    assert "before the start 0.01, weights 0.00" in gpu.summary(outcome)
    assert "free after start 0.09, after serving 0.09; 163,840 tokens in the pool, 0 graphs" in gpu.summary(outcome)
    with pytest.raises(AssertionError, match="cannot be accounted for"):
        start_and_serve("cpu", SHAPES["tiny"], "torch", (1, 4, 4))


def test_more_memory_than_its_share_is_an_error() -> None:
    class Growing(Memory):
        def release(self) -> None:
            self.taken += 20 * MIB

    memory = Growing(0)
    with pytest.raises(AssertionError, match="free_after_start is .* more than the share is taken"):
        start_and_serve("cpu", SHAPES["tiny"], "torch", (1, 4, 4), lambda device: memory)


def test_sizes_of_blocks_are_compared() -> None:
    table, slow, quick = (Tiles(rows=16, columns=64, depth=128, warps=4, stages=stages) for stages in (4, 2, 3))
    times = {table: 2e-4, slow: 3e-4, quick: 1e-4}

    def seconds(tiles: Tiles) -> float:
        if tiles.rows == 128:
            raise RuntimeError("out of resource: shared memory")
        return times[tiles]

    large = replace(table, rows=128)
    result = compare(table, [slow, table, large, quick], seconds)
    assert result["chosen"]["stages"] == 4 and result["best"]["stages"] == 3 and result["tried"] == 3
    assert result["failed"] == ["128x64x128x4x4: RuntimeError"]
    assert gpu.summary({"part": "moe", "ok": True, "seconds": 1.0, "result": {"Mixtral, 1 tokens": result}}).endswith(
        "Mixtral, 1 tokens: 16x64x128x4x4 200 us, best of 3 16x64x128x4x3 100 us (2.00 times as long), "
        "not run: 128x64x128x4x4: RuntimeError"
    )
    late = compare(table, [quick], seconds, deadline=0.0)
    assert late["tried"] == 1 and late["best"] == late["chosen"]


def test_tried_sizes_are_powers_of_two_and_fit() -> None:
    for item in OTHERS:
        assert all(item[name] & (item[name] - 1) == 0 for name in ("rows", "columns", "depth", "warps"))
        held = (item["rows"] + item["columns"]) * item["depth"] * 2 * item["stages"]
        assert item["rows"] >= 16 and held <= 227 << 10, "what one program may hold of shared memory"


def test_values_that_are_no_numbers_are_errors() -> None:
    assert relative_error(torch.ones(3), torch.ones(3)) == 0
    assert not relative_error(torch.tensor([1.0, torch.nan]), torch.ones(2)) <= 1.0


def options(out: Path, command: str = "check", **changed: Any) -> Namespace:
    defaults = {"out": out, "device": "cpu", "backends": ["torch"], "shapes": ["tiny"], "budget": 100.0, "jobs": 1}
    return Namespace(**{**defaults, "command": command, "part_limit": 50.0, **changed})


def test_order_of_the_parts(tmp_path: Path) -> None:
    parts = [" ".join(part) for part in gpu.selected_parts(options(tmp_path, backends=["triton", "flashinfer"]))]
    first = ["environment", "modules", "kernels", "quantized", "recurrent", "sampling", "launches"]
    first += ["conformance triton bfloat16"]
    assert parts[: len(first)] == first
    assert parts.count("memory llama-1B triton") == parts.count("memory llama-1B flashinfer") == 1
    assert {f"near {backend} graphs fp8_e4m3" for backend in ("triton", "flashinfer")} <= set(parts)
    assert "parity triton no-graphs" in parts and "near flashinfer graphs" in parts
    assert not any(part.startswith("parity flashinfer") for part in parts)  # it has no float32
    assert parts[-1] == "conformance flashinfer float16"
    args = options(tmp_path, "bench", backends=["flashinfer", "triton"], shapes=["llama-1B", "llama-8B"])
    parts = [" ".join(part) for part in gpu.selected_parts(args)]
    assert parts[-1] == "moe"
    assert parts[:4] == ["environment", "ceilings", "speed llama-1B flashinfer", "speed llama-8B flashinfer"]
    assert parts[4:6] == ["step llama-8B flashinfer", "prefix llama-8B flashinfer"]
    assert {"reference llama-8B", "speed llama-8B flashinfer fp8_e4m3"} <= set(parts)
    assert "layers llama-1B llama-8B" in parts and "adapter_steps llama-8B flashinfer" in parts
    assert parts.index("reference llama-8B") < parts.index("prompts flashinfer llama-1B llama-8B")


def test_lines_of_steps() -> None:
    prompts = {"llama-8B": {"16": {"eager": 6.0, "pieces": 3.0, "ratio": 2.0}}}
    summary = gpu.summary({"part": "prompts triton llama-8B", "ok": True, "seconds": 1.0, "result": prompts})
    assert summary.endswith("llama-8B: 16 tokens 3.00 ms (2.00)")
    steps = {"1": {"none": 4.0, "several": 5.5}}
    summary = gpu.summary({"part": "adapter_steps llama-8B triton", "ok": True, "seconds": 1.0, "result": steps})
    assert summary.endswith("1 at once: none 4.00 ms, several 5.50 ms")


def test_a_failed_part_hides_no_other(tmp_path: Path) -> None:
    def run_part(part: tuple[str, ...], device: str, seconds: float) -> dict[str, Any]:
        assert device == "cpu" and 0 < seconds <= 50.0
        if part[0] == "kernels":
            return {"part": "kernels", "ok": False, "error": "exit status 1", "trace": ["boom"], "seconds": 1.0}
        return {"part": " ".join(part), "ok": True, "result": "passed", "seconds": 1.0}

    outcomes = gpu.run_all(options(tmp_path), run_part)
    assert len(outcomes) > 6 and [outcome["part"] for outcome in outcomes if not outcome["ok"]] == ["kernels"]
    written = json.loads((tmp_path / "gpu-check.json").read_text(encoding="utf-8"))
    assert written["parts"] == outcomes
    assert gpu.summary(outcomes[1]) == "FAILED  kernels: exit status 1 boom"


def test_parts_at_once(tmp_path: Path) -> None:
    running, max_running, with_memory = set[str](), 0, set[str]()
    two = threading.Barrier(2, timeout=240)

    def run_part(part: tuple[str, ...], device: str, seconds: float) -> dict[str, Any]:
        nonlocal max_running
        name = " ".join(part)
        running.add(name)
        max_running = max(max_running, len(running))
        if name in ("environment", "modules"):
            two.wait()  # neither ends without the other
        if part[0] == "memory":
            with_memory.update(running - {name})
        running.discard(name)
        return {"part": name, "ok": True, "result": MEMORY if part[0] == "memory" else "passed", "seconds": 1.0}

    args = options(tmp_path, backends=["triton", "flashinfer"], jobs=2)
    outcomes = gpu.run_all(args, run_part)
    assert max_running == 2 and not with_memory
    assert [outcome["part"] for outcome in outcomes] == [" ".join(part) for part in gpu.selected_parts(args)]


def test_a_backend_that_does_not_run_is_replaced(tmp_path: Path) -> None:
    def run_part(part: tuple[str, ...], device: str, seconds: float) -> dict[str, Any]:
        works = "flashinfer" not in part
        outcome = {"part": " ".join(part), "ok": works, "seconds": 1.0}
        return outcome | ({"result": {}} if works else {"error": "exit status 1", "trace": []})

    args = options(tmp_path, "bench", backends=["flashinfer", "triton"], shapes=["llama-1B", "llama-8B"])
    parts = [item["part"] for item in gpu.run_all(args, run_part)]
    assert parts[2:6] == [
        "speed llama-1B flashinfer",
        "speed llama-8B triton",
        "step llama-8B triton",
        "prefix llama-8B triton",
    ]
    assert len(parts) == len(set(parts)) and "speed llama-1B triton" in parts


def test_no_part_is_started_without_time(tmp_path: Path) -> None:
    outcomes = gpu.run_all(options(tmp_path, "bench", budget=1.0))
    assert {outcome["error"] for outcome in outcomes} == {"no time left"}
    assert (tmp_path / "gpu-bench.json").is_file()


@pytest.mark.slow
def test_a_part_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[3]
    monkeypatch.chdir(root)
    good = gpu.run_part(("environment",), "cpu", 240.0)
    assert good["ok"], good
    bad = gpu.run_part(("conformance", "nosuch", "float32"), "cpu", 240.0)
    assert not bad["ok"] and "no attention named 'nosuch'" in gpu.summary(bad)
    hung = gpu.run_part(("environment",), "cpu", 0.2)
    assert hung["error"] == "not done after 0 s"
