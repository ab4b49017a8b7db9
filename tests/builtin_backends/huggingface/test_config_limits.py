"""Absurd numbers in ``config.json`` are refused before anything is allocated for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_plug import CheckpointRequest, ConfigError
from sglang_plug_backends.huggingface.checkpoint import open_checkpoint

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rope_scaling": None,
}
GEMMA = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": {}}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Any]:
    """Open a checkpoint with changes to a plain configuration."""

    def open_changed(text: str = "", weights: bool = False, **changes: Any) -> Any:
        (tmp_path / "config.json").write_text(text or json.dumps({**LLAMA, **changes}))
        return open_checkpoint(CheckpointRequest(source=str(tmp_path), weights=weights)).config

    return open_changed


@pytest.mark.parametrize(
    "field, value",
    [
        *(("num_hidden_layers", value) for value in (10**9, 1e9, 1e400, -1, 0, "2", True, [10**9], 1.5)),
        *(("hidden_size", value) for value in (1 << 40, -64, "64", 64.5)),
        *(("vocab_size", value) for value in (10**12, 0, float("nan"))),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 10**9),
        ("head_dim", 1 << 30),
        ("intermediate_size", 10**15),
        ("max_position_embeddings", 1 << 40),
        ("num_experts", 10**8),
        ("layer_types", ["full_attention"] * 100_000),
    ],
)
def test_absurd_numbers_are_refused_by_name(opened: Callable[..., Any], field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"config.json: {field}"):
        opened(**{field: value})


def test_parts_of_a_configuration_are_checked_too(opened: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="text_config.num_hidden_layers is 1000000000; the maximum is"):
        opened(**GEMMA | {"text_config": {"num_hidden_layers": 10**9}})


@pytest.mark.parametrize("depth", [40, 100_000])
def test_deeply_nested_data_are_refused(opened: Callable[..., Any], depth: int) -> None:
    with pytest.raises(ConfigError, match="nested more than|not valid JSON"):
        opened('{"model_type": "llama", "rope_scaling": ' + '{"a":' * depth + "1" + "}" * depth + "}")


def test_more_entries_than_any_configuration_has(opened: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="has more than"):
        opened(id2label={str(index): "x" for index in range(600_000)})


def test_the_checkpoint_s_files_bound_what_a_model_may_be(opened: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(1 << 20))
    assert opened(weights=True).vocab_size == 512
    for changes in (
        {"vocab_size": 10_000_000},
        {"intermediate_size": 4_000_000},
        {"num_hidden_layers": 4096},
        {"head_dim": 1 << 20},
        {"num_experts": 10_000, "moe_intermediate_size": 100},
    ):
        with pytest.raises(ConfigError, match=f"describes .*{list(changes)[0]} .* only 1048576 bytes"):
            opened(weights=True, **changes)
    assert opened(vocab_size=10_000_000).vocab_size == 10_000_000, "dummy weights are bounded by memory only"


@pytest.mark.parametrize("field, value", [("num_key_value_heads", None), ("rope_theta", 1e9), ("id2label", {})])
def test_real_configurations_are_accepted(opened: Callable[..., Any], field: str, value: Any) -> None:
    opened(**{field: value})


hostile = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=8),
    st.sampled_from([10**9, 1 << 40, 10**12, -1, 0]),
    st.recursive(st.integers() | st.text(max_size=4), lambda item: st.lists(item) | st.dictionaries(st.text(), item)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(LLAMA)[1:]), hostile, min_size=1, max_size=3))
def test_any_change_is_read_or_refused(opened: Callable[..., Any], changes: dict[str, Any]) -> None:
    try:
        config = opened(**changes)
    except ConfigError:
        return
    assert 1 <= config.num_hidden_layers <= 4096 and 1 <= config.vocab_size <= 1 << 24
