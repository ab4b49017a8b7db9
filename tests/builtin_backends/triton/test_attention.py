from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from sglang_plug import AttentionShape, ConfigError, PluginOptions, Plugins
from sglang_plug.testing import check_attention_backend

os.environ["TRITON_INTERPRET"] = "0"  # in this process; what is interpreted here runs in others
pytest.importorskip("triton", reason="Triton is not installed")

KIT = """
import torch
from sglang_plug.testing import check_attention_backend
from sglang_plug_backends.triton.settings import TritonSettings

check_attention_backend("triton", dtype=torch.{dtype}, settings=TritonSettings(splits={splits}), encoder=True)
"""
NARROW_KIT = """
import torch
from sglang_plug.testing import check_attention_backend

def few(case):
    return "page size 4" in case.name or "static" in case.name or "stored" in case.name

check_attention_backend("triton", dtype=torch.{dtype}, kv_dtype=torch.{kv_dtype}, only=few)
"""
UNSET = """
{before}
import torch
from sglang_plug.testing import check_attention_backend
from sglang_plug_backends.triton.attention import INTERPRETED

assert INTERPRETED == (not torch.cuda.is_available())
if INTERPRETED:
    check_attention_backend("triton", only=lambda case: "page size 4" in case.name)
"""
UNEVEN = """
import torch
from sglang_plug import AttentionShape
from sglang_plug_backends.triton.attention import TritonAttention

TritonAttention(AttentionShape(heads=7, kv_heads=2, dim=64, layers=1), torch.device("cpu"))
"""


def interpreted(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` where Triton's kernels are interpreted; that is decided when they are imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "splits"), [("float32", 0), ("bfloat16", 4)])
def test_interpreted_kernels_conform(dtype: str, splits: int) -> None:
    done = interpreted(KIT.format(dtype=dtype, splits=splits))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("bfloat16", "float8_e4m3fn"), ("float32", "float8_e5m2"), ("float16", "bfloat16")]
)
def test_interpreted_kernels_conform_with_a_pool_of_another_dtype(dtype: str, kv_dtype: str) -> None:
    done = interpreted(NARROW_KIT.format(dtype=dtype, kv_dtype=kv_dtype))
    assert done.returncode == 0, done.stderr


def test_old_gpus_have_no_e4m3(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_plug_backends.triton import attention

    shape = AttentionShape(heads=8, kv_heads=2, dim=64, layers=1, kv_dtype=torch.float8_e4m3fn)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(
        ConfigError, match=r"compute capability 8\.9 or more; use --kv-cache-dtype fp8_e5m2 or bfloat16"
    ):
        attention.TritonAttention(shape, torch.device("cuda"))


def test_heads_that_do_not_divide_are_refused() -> None:
    done = interpreted(UNEVEN)
    assert "ConfigError" in done.stderr and "7 query heads on 2 key heads" in done.stderr


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
    from sglang_plug_backends.triton.attention import TritonAttention

    shape = AttentionShape(heads=8, kv_heads=2, dim=64, layers=1)
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        TritonAttention(shape, torch.device("cpu"))


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
    from sglang_plug_backends.triton.settings import TritonSettings

    check_attention_backend("triton", device="cuda", dtype=dtype, settings=TritonSettings(splits=splits), encoder=True)
