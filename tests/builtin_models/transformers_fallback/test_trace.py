"""Tracing of transformers' models without weights, and the models that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from packaging.version import Version
from transformers import PretrainedConfig

from sglang_plug import AttentionShape, ConfigError
from sglang_plug_models.transformers_fallback.trace import check_rope, trace

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def config(architecture: str, **fields: Any) -> PretrainedConfig:
    configuration: PretrainedConfig = getattr(transformers, architecture).config_class(**fields)
    configuration.architectures = [architecture]
    return configuration


ODD: dict[str, tuple[PretrainedConfig, AttentionShape]] = {
    "n_head and multi_query": (
        config("GPTBigCodeForCausalLM", vocab_size=96, n_embd=32, n_layer=2, n_head=4),
        AttentionShape(heads=4, kv_heads=1, dim=8, layers=2),
    ),
    "keys wider than values": (
        config(
            "DeepseekV3ForCausalLM",
            **SMALL,
            num_key_value_heads=4,
            kv_lora_rank=8,
            q_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=6,
            v_head_dim=5,
            first_k_dense_replace=2,
        ),
        AttentionShape(heads=4, kv_heads=4, dim=10, value_dim=5, layers=2),
    ),
    "a decoder within the model": (
        config("OPTForCausalLM", vocab_size=96, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4),
        AttentionShape(heads=4, kv_heads=4, dim=8, layers=2),
    ),
    "sinks": (
        config("GptOssForCausalLM", **SMALL, num_key_value_heads=2, head_dim=8),
        AttentionShape(heads=4, kv_heads=2, dim=8, layers=2, sinks=True),
    ),
    "layers that differ": (
        config(
            "Gemma4ForCausalLM",
            **SMALL,
            num_key_value_heads=2,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            head_dim=8,
            global_head_dim=16,
            layer_types=["sliding_attention", "full_attention"],
        ),
        AttentionShape(heads=4, kv_heads=2, dim=16, layers=2),
    ),
    "positions that are looked at": (
        config(
            "LlamaForCausalLM",
            **SMALL,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        ),
        AttentionShape(heads=4, kv_heads=4, dim=8, layers=2),
    ),
}


@pytest.mark.parametrize("case", sorted(ODD))
def test_the_geometry_is_seen_whatever_the_configuration_calls_it(case: str) -> None:
    traced, shape = ODD[case]
    assert trace(traced).shape() == shape


def test_scale_window_and_cap_of_each_layer() -> None:
    result = trace(
        config(
            "Gemma2ForCausalLM", **SMALL, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=4, sliding_window=9
        )
    )
    assert [(layer.scale, layer.window, layer.softcap) for layer in result.layers] == [
        (0.5, 9, 50.0),
        (0.5, None, 50.0),
    ]
    assert [layer.module for layer in result.layers] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert result.body == "model"


REFUSED: dict[str, tuple[PretrainedConfig, str]] = {
    "no such class": (config("LlamaForCausalLM", **SMALL), "has no class of that name"),
    "a state": (
        config("MambaForCausalLM", vocab_size=96, hidden_size=32, num_hidden_layers=2),
        "keeps a state besides",
    ),
    "a state in some layers": (
        config(
            "GraniteMoeHybridForCausalLM",
            **SMALL,
            num_key_value_heads=2,
            layer_types=["linear_attention", "full_attention"],
            mamba_n_heads=4,
        ),
        "keeps a state besides",
    ),
    "attention of its own": (
        config("BloomForCausalLM", vocab_size=96, hidden_size=32, n_head=4),
        "does not go through",
    ),
    "two calls in a layer": (config("DiffLlamaForCausalLM", **SMALL), "2 layers make 4 attention calls"),
    "an encoder": (config("BertLMHeadModel", **SMALL), "looks at later tokens"),
    "another task": (config("BertForMaskedLM", **SMALL), "not a causal language model"),
    "another model's configuration": (config("LlamaForCausalLM", **SMALL), "the class needs a Qwen2Config"),
    "layers without attention": (
        config(
            "Lfm2ForCausalLM", **SMALL, num_key_value_heads=2, layer_types=["conv", "full_attention"], conv_L_cache=3
        ),
        "2 layers make 1 attention calls",
    ),
}
if Version(transformers.__version__) < Version("5.24"):  # later versions have no table of positions
    REFUSED["a table of attentions"] = (
        config("GPTJForCausalLM", vocab_size=96, n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
        r"cannot be replaced \(KeyError",
    )
REFUSED["no such class"][0].architectures = ["NowhereForCausalLM"]
REFUSED["another model's configuration"][0].architectures = ["Qwen2ForCausalLM"]


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_would_not_be_right_is_refused_in_one_line(case: str) -> None:
    config, words = REFUSED[case]
    with pytest.raises(ConfigError, match=f"^{config.architectures[0]} cannot be served through.*{words}") as caught:
        trace(config)
    assert "\n" not in str(caught.value)


def test_rotations_that_change_with_the_batch_are_refused() -> None:
    result = config(
        "Phi3ForCausalLM",
        **SMALL,
        max_position_embeddings=512,
        original_max_position_embeddings=64,
        pad_token_id=0,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    )
    check_rope(result, 64)
    with pytest.raises(ConfigError, match="longrope beyond 64 tokens.*add --context-length 64"):
        check_rope(result, 65)
