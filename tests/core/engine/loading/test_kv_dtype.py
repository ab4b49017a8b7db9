"""The dtype of the KV pool: its choice, the backends that can read it, and the resulting bytes per slot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from sglang_plug import ConfigError, EngineConfig, Plugins
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from sglang_plug.engine.loading.kv_dtype import kv_dtype, kv_dtype_name
from sglang_plug.engine.loading.resolve import Resolved, resolve
from sglang_plug.engine.startup.kv_sizing import bytes_per_slot


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("auto", None),
        ("bf16", None),
        ("bfloat16", None),
        ("float32", torch.float32),
        ("fp8_e4m3", torch.float8_e4m3fn),
        ("fp8_e5m2", torch.float8_e5m2),
    ],
)
def test_names(name: str, dtype: torch.dtype | None) -> None:
    assert kv_dtype(name, torch.bfloat16) == dtype
    assert dtype is None or kv_dtype_name(dtype) == name


def test_an_unknown_name() -> None:
    with pytest.raises(
        ConfigError, match="--kv-cache-dtype 'fp8' is unknown; known: auto, bfloat16.*fp8_e4m3, fp8_e5m2"
    ):
        kv_dtype("fp8", torch.bfloat16)


@pytest.fixture
def resolved(tiny_model: Callable[[str], Any]) -> Callable[..., Resolved]:
    path = tiny_model("llama-3.2-1b").path

    def make(
        kv: str, attention: str = "torch", dtype: str = "bfloat16", plugins: Plugins | None = None, reader: str = "auto"
    ) -> Resolved:
        config = EngineConfig(
            model=ModelOptions(path=str(path), device="cpu", dtype=dtype, checkpoint_format=reader),
            cache=CacheOptions(kv_dtype=kv),
            backends=BackendOptions(attention=attention, grammar="none"),
        )
        return resolve(config, plugins or Plugins.discover())

    return make


def test_a_slot_takes_half(resolved: Callable[..., Resolved]) -> None:
    whole, half = resolved("auto"), resolved("fp8_e4m3")
    assert whole.kv_dtype == torch.bfloat16 and half.kv_dtype == torch.float8_e4m3fn
    assert bytes_per_slot(whole) == 2 * bytes_per_slot(half) > 0
    assert resolved("auto", dtype="float32").shape.kv_dtype is None
    assert bytes_per_slot(resolved("bfloat16", dtype="float32")) == bytes_per_slot(whole)


def test_a_backend_that_does_not_declare_it_is_refused(resolved: Callable[..., Resolved], install: Any) -> None:
    install(
        "own-words",
        """
        @hookimpl
        def register_attention_backends():
            target = "sglang_plug_backends.torch_native.attention:TorchAttention"
            yield AttentionSpec(name="plain", target=target)
            yield AttentionSpec(name="half", target=target, kv_dtypes=frozenset({"fp8_e5m2"}))
            elsewhere = frozenset({"xpu"})
            yield AttentionSpec(name="elsewhere", target=target, kv_dtypes=frozenset({"fp8_e4m3"}), devices=elsewhere)
        """,
    )
    plugins = Plugins.discover()
    with pytest.raises(ConfigError) as refusal:
        resolved("fp8_e4m3", "plain", plugins=plugins)
    assert "attention 'plain' from own-words" in str(refusal.value)
    assert "in fp8_e4m3 (--kv-cache-dtype), only in the model's dtype; use --attention-backend" in str(refusal.value)
    assert "torch" in str(refusal.value) and "elsewhere" not in str(refusal.value)
    with pytest.raises(ConfigError, match="only in the model's dtype and fp8_e5m2"):
        resolved("fp8_e4m3", "half", plugins=plugins)
    assert resolved("fp8_e5m2", "half", plugins=plugins).kv_dtype == torch.float8_e5m2
    assert resolved("bf16", "plain", plugins=plugins).shape.kv_dtype is None


def test_auto_is_what_the_checkpoint_says_where_it_is_read(
    resolved: Callable[..., Resolved], install: Any, caplog: pytest.LogCaptureFixture
) -> None:
    install(
        "plain-words",
        """
        @hookimpl
        def register_attention_backends():
            yield AttentionSpec(name="plain", target="sglang_plug_backends.torch_native.attention:TorchAttention")

        @hookimpl
        def register_weight_loaders():
            yield CheckpointSpec(name="half-cache", target=f"{__name__}:read")

        def read(request):
            from dataclasses import replace
            from sglang_plug_backends.huggingface.checkpoint import open_checkpoint
            return replace(open_checkpoint(request), kv_dtype="fp8_e5m2")
        """,
    )
    resolved = partial(resolved, plugins=Plugins.discover(), reader="half-cache")
    caplog.set_level(logging.INFO, "sglang_plug.engine.loading.kv_dtype")
    assert resolved("auto", "torch").kv_dtype == torch.float8_e5m2
    assert "are kept in fp8_e5m2, as the checkpoint says" in caplog.text
    caplog.clear()
    caplog.set_level(logging.WARNING, "sglang_plug.engine.loading.kv_dtype")
    assert resolved("auto", "auto").kv_dtype == torch.float8_e5m2
    assert resolved("bfloat16", "torch").kv_dtype == torch.bfloat16
    assert resolved("fp8_e4m3", "torch").kv_dtype == torch.float8_e4m3fn
    assert not caplog.records
    resolution = resolved("auto", "plain")
    assert resolution.kv_dtype == torch.bfloat16 and resolution.shape.kv_dtype is None
    assert "specifies a KV cache dtype of fp8_e5m2, which attention 'plain' from plain-words" in caplog.text
    with pytest.raises(ConfigError, match="does not read keys and values in fp8_e5m2"):
        resolved("fp8_e5m2", "plain")


def test_what_is_chosen_reads_it(resolved: Callable[..., Resolved]) -> None:
    assert resolved("fp8_e4m3", "auto").choices["attention"].component.spec.name == "torch"
