from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from sglang_plug import AttentionShape, ConfigError, PluginOptions, Plugins
from sglang_plug.testing import check_attention_backend
from sglang_plug.testing.model.attention_cases import Case

pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug_backends.triton import attention
from sglang_plug_backends.triton.settings import TritonSettings

# The interpreter computes with numpy, which warns where a device does not.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

UNSET = """
{before}
import torch
from sglang_plug.testing import check_attention_backend
from sglang_plug_backends.triton.attention import INTERPRETED

assert INTERPRETED == (not torch.cuda.is_available())
checked = []

def only(case):
    if case.name == "prefill and decode in one batch, page size 4":
        checked.append(case)
        return True

if INTERPRETED:
    check_attention_backend("triton", only=only)
    assert len(checked) == 1
"""


@pytest.mark.slow
@pytest.mark.interpreted
def test_interpreted_kernels_conform() -> None:
    check_attention_backend("triton", encoder=True)


@pytest.mark.slow
@pytest.mark.interpreted
def test_interpreted_kernels_conform_with_splits_in_bfloat16() -> None:
    settings = TritonSettings(splits=4)
    check_attention_backend("triton", dtype=torch.bfloat16, settings=settings, encoder=True, only=splits_matter)


def splits_matter(case: Case) -> bool:
    """Leave out what only changes the shapes and options of prefills, which have no splits."""
    return not case.name.startswith(("mixed batch, ", "40 heads")) or "sinks" in case.name


def few(case: Case) -> bool:
    return "page size 4" in case.name or "static" in case.name or "stored" in case.name


@pytest.mark.slow
@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.float32, torch.float8_e5m2),
        (torch.float16, torch.bfloat16),
    ],
)
def test_interpreted_kernels_conform_with_a_pool_of_another_dtype(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check_attention_backend("triton", dtype=dtype, kv_dtype=kv_dtype, only=few)


def test_old_gpus_have_no_e4m3(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = AttentionShape(heads=8, kv_heads=2, dim=64, layers=1, kv_dtype=torch.float8_e4m3fn)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(
        ConfigError, match=r"compute capability 8\.9 or more; use --kv-cache-dtype fp8_e5m2 or bfloat16"
    ):
        attention.TritonAttention(shape, torch.device("cuda"))


@pytest.mark.interpreted
def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="got 7 and 2"):
        attention.TritonAttention(AttentionShape(heads=7, kv_heads=2, dim=64, layers=1), torch.device("cpu"))


@pytest.mark.parametrize("before", ["", "import triton", "import torch._dynamo"])
def test_without_a_gpu_the_kernels_are_interpreted(before: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", UNSET.format(before=before)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_cpu_is_refused_without_the_interpreter() -> None:
    shape = AttentionShape(heads=8, kv_heads=2, dim=64, layers=1)
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        attention.TritonAttention(shape, torch.device("cpu"))


def test_splits_must_be_a_power_of_two() -> None:
    plugins = Plugins.discover(PluginOptions(settings={"triton": {"splits": "8"}}))
    assert plugins.get("attention", "triton").settings().splits == 8
    plugins = Plugins.discover(PluginOptions(settings={"triton": {"splits": "3"}}))
    with pytest.raises(ConfigError, match="power of two, not 3"):
        plugins.get("attention", "triton").settings()


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_compiled_kernels_conform_with_a_pool_in_float8(kv_dtype: torch.dtype) -> None:
    check_attention_backend("triton", device="cuda", dtype=torch.bfloat16, kv_dtype=kv_dtype)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("splits", [0, 1, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compiled_kernels_conform(dtype: torch.dtype, splits: int) -> None:
    check_attention_backend("triton", device="cuda", dtype=dtype, settings=TritonSettings(splits=splits), encoder=True)
