"""DeepSeek's multi-head latent attention and grouped experts equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config, DeepseekV3ForCausalLM, PretrainedConfig

from sglang_plug import BuildEnv, ConfigError, Model, WeightError
from sglang_plug.layers import Router
from sglang_plug.testing import check_model
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.deepseek.model import DeepseekV2, DeepseekV3

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 1.3,
}
GROUPS: dict[str, Any] = {"n_group": 4, "topk_group": 2}


def v2(**more: Any) -> tuple[str, PretrainedConfig]:
    return "DeepseekV2ForCausalLM", DeepseekV2Config(**{**SHAPE, "q_lora_rank": None, **more})


def v3(**more: Any) -> tuple[str, PretrainedConfig]:
    return "DeepseekV3ForCausalLM", DeepseekV3Config(**{**SHAPE, **GROUPS, "q_lora_rank": 14, **more})


LIMITED: dict[str, Any] = {"topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0, **GROUPS}

CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "v2 lite": v2(),
    "v2 lite, yarn": v2(rope_parameters=YARN),
    "v2 lite, yarn, mscale=0": v2(rope_parameters={**YARN, "mscale": 0.0, "mscale_all_dim": 0.0}),
    "v2 lite, all layers dense": v2(first_k_dense_replace=3),
    "v2 lite, no dense layer": v2(first_k_dense_replace=0),
    "v2 lite, one head": v2(num_attention_heads=1, num_key_value_heads=1),
    "v2": v2(q_lora_rank=14, rope_parameters=YARN, **LIMITED),
    "v2, topk_group=1": v2(q_lora_rank=14, **{**LIMITED, "topk_group": 1}),
    "v2, topk_group=4": v2(q_lora_rank=14, **{**LIMITED, "topk_group": 4}),
    "v2 biased": v2(q_lora_rank=14, attention_bias=True, mlp_bias=True),
    "v2 lite biased and tied": v2(attention_bias=True, tie_word_embeddings=True),
    "v3": v3(rope_parameters=YARN),
    "v3, q_lora_rank=None": v3(q_lora_rank=None),
    "v3, norm_topk_prob=False": v3(norm_topk_prob=False),
    "v3, n_group=1": v3(n_group=1, topk_group=1),
    "v3, one expert": v3(num_experts_per_tok=1),
    "v3, rope_interleave=False": v3(rope_interleave=False),
    "v3 biased": v3(attention_bias=True),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])


def build(model: type[Model], config: Any) -> Model:
    backend = TorchAttention(model.attention_shape(config), torch.device("cpu"))
    return model(config, BuildEnv(attention=backend))


@pytest.mark.parametrize(
    ("model", "case", "message"),
    [
        (DeepseekV2, v2(topk_method="noaux_tc"), "topk_method 'noaux_tc' is not supported; known: greedy, group_"),
        (DeepseekV2, v2(norm_topk_prob=True), "norm_topk_prob is not supported for DeepSeek-V2"),
        (DeepseekV2, v2(**{**LIMITED, "n_group": 5}), "cannot choose 3 of 12 experts from 2 of 5 groups"),
        (DeepseekV2, v2(**{**LIMITED, "topk_group": 5}), "from 5 of 4 groups"),
        (DeepseekV3, v3(num_experts_per_tok=7), "cannot choose 7 of 12 experts from 2 of 4 groups"),
    ],
)
def test_unroutable_experts_are_refused(model: type[Model], case: tuple[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(model, case[1])


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    model = build(DeepseekV3, v3(num_mtp_layers=1)[1])
    weights = DeepseekV3ForCausalLM(model.config).state_dict()
    more = {
        name: torch.zeros(1) for name in ("model.layers.3.eh_proj.weight", "model.layers.3.shared_head.norm.weight")
    }
    model.load_weights({**weights, **more}.items())
    with pytest.raises(WeightError, match=r"model\.layers\.4\.norm"):
        model.load_weights({**weights, "model.layers.4.norm": torch.zeros(1)}.items())


def test_routers_compute_in_float32_and_keep_their_bias_so() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = build(DeepseekV3, v3()[1])
    finally:
        torch.set_default_dtype(torch.float32)
    router = next(module for module in model.modules() if isinstance(module, Router))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    x, weight = torch.randn(5, 32, dtype=torch.bfloat16), router.weight.detach().clone()
    assert router.e_score_correction_bias.dtype == torch.float32
    model.prepare()
    assert torch.equal(router(x), x.float() @ weight.float().T)
    experts, weights = router.choose(x)
    assert weights.dtype == torch.float32 and torch.allclose(weights.sum(-1), torch.full((5,), 2.5))
    assert all(len({int(expert) // 3 for expert in row}) <= 2 for row in experts)
