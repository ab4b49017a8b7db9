"""Launch arguments of kernels; the effect of dependent launches is tested in ``test_compile``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug import AttentionShape, KVPool, SamplingOptions, SamplingParams
from sglang_plug_backends.triton import attention, launch, moe, sampling
from sglang_plug_backends.triton import kernel_set as kernels
from sglang_plug_backends.triton import matrix_vector as row
from sglang_plug_backends.triton.settings import TritonSettings

from .compiling import replace_kernels

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


class Recorded:
    """Stands in for a kernel: a launch records its arguments."""

    def __init__(self, kernel: Any, launches: dict[str, dict[str, Any]]) -> None:
        self.name, self.launches = kernel.__name__, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def keep(*arguments: Any, **named: Any) -> None:
            self.launches[self.name] = named

        return keep


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Return each launched kernel on a device with overlapping launches, and its named arguments."""
    results: dict[str, dict[str, Any]] = {}
    replace_kernels(monkeypatch, (kernels, moe, sampling, row, attention), partial(Recorded, launches=results))
    return results


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clear the cached device properties before and after the test."""
    launch.can_overlap.cache_clear()
    yield
    launch.can_overlap.cache_clear()


@pytest.mark.parametrize("overlap", [True, False])
def test_all_kernels_of_the_set_do_as_the_settings_say(launched: dict[str, dict[str, Any]], overlap: bool) -> None:
    kernel_set = kernels.build(TritonSettings(overlap_launches=overlap))
    assert kernel_set.rope_store is not None
    x, logits = torch.zeros(2, 64), torch.zeros(2, 40)
    kernel_set.rms_norm(x, x[0], 1e-5)
    kernel_set.add_rms_norm(x, x.clone(), x[0], 1e-5)
    kernel_set.silu_mul(x)
    heads = x.view(2, 2, 32)
    kernel_set.apply_rope(heads, x[:, :32], x[:, :32])
    pool = KVPool.of(AttentionShape(heads=2, kv_heads=2, dim=32, layers=1), slots=3, dtype=x.dtype, device=CPU)
    kernel_set.rope_store(heads, heads, heads, x[:, :32], x[:, :32], pool, 0, torch.arange(2))
    experts = torch.zeros(2, 1, dtype=torch.int64)
    kernel_set.moe(x, torch.zeros(3, 64, 64), torch.zeros(3, 64, 32), experts, torch.ones(2, 1))
    kernel_set.mask_logits(logits, None, torch.zeros(2, 2, dtype=torch.int32))
    options = SamplingOptions.of([SamplingParams()] * 2, 40, lambda tensor: tensor)
    kernel_set.sample_tokens(logits, options, torch.zeros(2, dtype=torch.float64))
    expected = {
        *("rms_norm_kernel", "add_rms_norm_kernel", "silu_mul_kernel", "rope_kernel", "rope_store_kernel"),
        *("grouped_kernel", "mask_kernel", "draw_kernel"),
    }
    assert launched.keys() == expected
    check(launched, overlap)


@pytest.mark.parametrize("overlap", [True, False])
def test_products_of_one_row_too(launched: dict[str, dict[str, Any]], overlap: bool) -> None:
    timed: list[Any] = []

    def time(products: Any) -> float:
        timed.append(products[0]())
        return 1.0 if len(timed) == 1 else 0.5

    weight = torch.zeros(8, 64, dtype=torch.bfloat16)
    products = row.RowProducts(kernels.silu_mul, time, overlap=overlap)
    multiply = products.pack_linear(weight, None)
    assert len(timed) == 1 + len(row.TILES)
    check(launched, overlap)  # as they were timed
    launched.clear()
    multiply(weight[:1])
    assert launched.keys() == {"row_kernel"}
    check(launched, overlap)


@pytest.mark.interpreted
@pytest.mark.parametrize("overlap", [True, False])
def test_attention_does_as_its_settings_say(launched: dict[str, dict[str, Any]], overlap: bool) -> None:
    from sglang_plug import Attention, BuildEnv
    from sglang_plug.testing.model.attention_inputs import ShuffledSlots, make_batch

    shape = AttentionShape(heads=2, kv_heads=1, dim=16, layers=1)
    settings = TritonSettings(splits=2, overlap_launches=overlap)
    backend = attention.TritonAttention(shape, CPU, settings)
    slots, contexts = ShuffledSlots(40, 2, 1, torch.Generator()), list[list[int]](([], []))
    for context in contexts:
        slots.extend(context, 20)
    pool = KVPool.of(shape, slots=slots.rows, dtype=torch.float32, device=CPU)
    batch = make_batch(contexts, [1, 5], kv=pool, device=CPU)
    backend.plan(batch)
    keys = torch.zeros(6, 1, 16)
    Attention(BuildEnv(attention=backend), 0, scale=1.0)(torch.zeros(6, 2, 16), keys, keys, batch)
    assert launched.keys() == {"decode_kernel", "merge_kernel", "prefill_kernel"}
    check(launched, overlap)


def nothing() -> None:
    """A function without a body, to be made a kernel."""


def check(launched: dict[str, dict[str, Any]], overlap: bool) -> None:
    """Check that kernel and launch agree; a launch without overlap does not pass the option at all."""
    for name, named in launched.items():
        assert (named["AHEAD"], named.get("launch_pdl", "absent")) == (
            (True, True) if overlap else (False, "absent")
        ), name
        assert named["enable_fp_fusion"] is True, name


@pytest.mark.parametrize(
    ("capability", "known", "hip", "compiled", "expected"),
    [
        ((9, 0), True, None, True, True),
        ((10, 0), True, None, True, True),
        ((8, 9), True, None, True, False),
        ((9, 0), False, None, True, False),
        ((9, 4), True, "6.4", True, False),
        ((9, 0), True, None, False, False),
    ],
)
def test_where_launches_can_overlap(
    capability: tuple[int, int],
    known: bool,
    hip: str | None,
    compiled: bool,
    expected: bool,
    fresh: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices: list[torch.device] = []

    def tell(device: torch.device) -> tuple[int, int]:
        devices.append(device)
        return capability

    monkeypatch.setattr(torch.cuda, "get_device_capability", tell)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(launch, "supports_overlap", lambda: known)
    monkeypatch.setattr(launch, "rms_norm_kernel", launch.triton.JITFunction(nothing) if compiled else object())
    for _ in range(3):
        assert launch.launch_options(CUDA, True) is (launch.OVERLAPPING if expected else launch.OPTIONS)
    assert len(devices) <= 1, "asked once for all launches"
    assert launch.launch_options(CUDA, False) is launch.OPTIONS
    assert launch.launch_options(CPU, True) is launch.OPTIONS


def test_older_versions_of_triton_do_not_know_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.supports_overlap()
    older = "import dataclasses\n\nCUDAOptions = dataclasses.make_dataclass('CUDAOptions', [('num_warps', int, 4)])\n"
    (tmp_path / "older_compiler_of_triton.py").write_text(older)
    (tmp_path / "other_compiler_of_triton.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("older_compiler_of_triton", "other_compiler_of_triton", "no_compiler_of_triton"):
        assert not launch.supports_overlap(module)
