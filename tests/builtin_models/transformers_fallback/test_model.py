"""Transformers' model code with this engine's attention gives transformers' logits, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import (
    BioGptConfig,
    CohereConfig,
    Gemma4TextConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    MiMoV2FlashConfig,
    MixtralConfig,
    ModernBertDecoderConfig,
    OPTConfig,
    PhiConfig,
    PretrainedConfig,
    StableLmConfig,
    Starcoder2Config,
)

from sglang_plug import Attention, AttentionBackend, BuildEnv, ConfigError, ForwardBatch, Plugins, WeightError
from sglang_plug.testing import check_model
from sglang_plug_backends.weights.dummy import load_dummy
from sglang_plug_models.transformers_fallback import choose_component
from sglang_plug_models.transformers_fallback.model import TransformersModel

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED: dict[str, Any] = {**SMALL, **TOKENS, "num_key_value_heads": 2}
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "starcoder2": ("Starcoder2ForCausalLM", Starcoder2Config(**GROUPED)),
    "starcoder2 with a sliding window": ("Starcoder2ForCausalLM", Starcoder2Config(**GROUPED, sliding_window=6)),
    "granite": (
        "GraniteForCausalLM",
        GraniteConfig(**GROUPED, attention_multiplier=0.3, embedding_multiplier=2.0, logits_scaling=4.0),
    ),
    "cohere": ("CohereForCausalLM", CohereConfig(**GROUPED, logit_scale=0.25)),
    "stablelm": ("StableLmForCausalLM", StableLmConfig(**GROUPED)),
    "phi": ("PhiForCausalLM", PhiConfig(**SMALL, **TOKENS)),
    "opt": ("OPTForCausalLM", OPTConfig(**SMALL, **TOKENS, ffn_dim=48, word_embed_proj_dim=16)),
    "mixtral": ("MixtralForCausalLM", MixtralConfig(**GROUPED, num_local_experts=4)),
    "modernbert-decoder": (
        "ModernBertDecoderForCausalLM",
        ModernBertDecoderConfig(
            **SMALL, **TOKENS, local_attention=12, global_attn_every_n_layers=2, cls_token_id=3, sep_token_id=4
        ),
    ),
    "gpt-oss": ("GptOssForCausalLM", GptOssConfig(**GROUPED, head_dim=8, num_local_experts=4, sliding_window=6)),
    "biogpt": ("BioGptForCausalLM", BioGptConfig(**SMALL, **TOKENS)),
    "gemma4, layers of different head_dim": (
        "Gemma4ForCausalLM",
        Gemma4TextConfig(
            **GROUPED | {"num_hidden_layers": 4},
            head_dim=8,
            global_head_dim=16,
            num_global_key_value_heads=1,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=96,
            num_kv_shared_layers=2,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    ),
    "mimo, sliding windows with more key heads and attention sinks": (
        "MiMoV2FlashForCausalLM",
        MiMoV2FlashConfig(
            **GROUPED,
            head_dim=12,
            v_head_dim=8,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            sliding_window=6,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
    "granite 4 without Mamba layers": (
        "GraniteMoeHybridForCausalLM",
        GraniteMoeHybridConfig(
            **GROUPED,
            num_local_experts=0,
            shared_intermediate_size=24,
            layer_types=["full_attention"] * 2,
            mamba_n_heads=4,
            position_embedding_type="rope",
        ),
    ),
}


def named(case: str) -> tuple[str, PretrainedConfig]:
    architecture, config = CASES[case]
    config.architectures = [architecture]
    return architecture, config


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*named(case), model_class=TransformersModel)


def backend(config: PretrainedConfig) -> AttentionBackend:
    result: AttentionBackend = (
        Plugins.discover()
        .get("attention", "torch")
        .load()(TransformersModel.attention_shape(config), torch.device("cpu"))
    )
    return result


def built(case: str, attention: AttentionBackend | None = None) -> tuple[TransformersModel, dict[str, Tensor]]:
    architecture, config = named(case)
    torch.manual_seed(0)
    stored = getattr(transformers, architecture)(config).state_dict()
    return TransformersModel(config, BuildEnv(attention=attention or backend(config))), stored


@pytest.mark.parametrize("change", ["left out", "added", "misshapen"])
def test_loading_is_strict_both_ways(change: str) -> None:
    model, weights = built("granite")
    name = "model.layers.1.mlp.up_proj.weight"
    if change == "left out":
        del weights[name]
    elif change == "added":
        weights["model.stranger.weight"] = torch.zeros(3)
    else:
        weights[name] = torch.zeros(3, 3)
    words = {"left out": f"1 parameters unfilled, first '{name}'", "added": "'model.stranger.weight'"}
    with pytest.raises(WeightError, match=words.get(change, "does not fit GraniteForCausalLM")):
        model.load_weights(weights.items())


def test_experts_stored_one_by_one_are_joined() -> None:
    model, weights = built("mixtral")
    apart: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        root, _, last = name.rpartition(".mlp.experts.")
        for expert, item in enumerate(tensor) if root else ():
            old = f"{root}.block_sparse_moe.experts.{expert}"
            parts = zip(("w1", "w3"), item.chunk(2), strict=True) if last == "gate_up_proj" else (("w2", item),)
            apart |= {f"{old}.{part}.weight": piece for part, piece in parts}
        if not root:
            apart[name.replace(".mlp.gate.", ".block_sparse_moe.gate.")] = tensor
    model.load_weights(apart.items())
    loaded = dict(model.reference.named_parameters())
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items() if name in loaded)
    model.prepare()


def test_random_weights_will_do() -> None:
    model, _ = built("stablelm")
    model.load_weights(load_dummy(None, model))  # type: ignore[arg-type]
    model.prepare()


class Forgetful(AttentionBackend):
    """Attention that ignores the KV cache, and attends only to the tokens of this step."""

    def __init__(self, inner: AttentionBackend) -> None:
        super().__init__(inner.shape, inner.device)
        self.inner = inner

    def plan(self, batch: ForwardBatch) -> None:
        batch.kv_lens = list(batch.query_lens)
        self.inner.plan(batch)

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        return self.inner.run(layer, q, k, v, batch)


def test_logits_that_are_off_are_not_served() -> None:
    model, weights = built("starcoder2", Forgetful(backend(named("starcoder2")[1])))
    model.load_weights(weights.items())
    with pytest.raises(ConfigError, match="^Starcoder2ForCausalLM cannot be .*logits are off by"):
        model.prepare()


class Smoothed(nn.Module):
    """A layer that mixes each token with the previous row of the batch, as a convolution would."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + x.roll(1, dims=1))


def test_a_layer_that_mixes_sequences_is_noticed() -> None:
    model, weights = built("granite")
    model.load_weights(weights.items())
    layer: Any = model.reference.get_submodule("model.layers.1")
    layer.input_layernorm = Smoothed(layer.input_layernorm)
    with pytest.raises(ConfigError, match="logits are off by"):
        model.prepare()


@pytest.mark.parametrize(
    ("architecture", "chosen"),
    [("CohereForCausalLM", "transformers"), ("GPT2LMHeadModel", "transformers"), ("BertForMaskedLM", None)],
)
def test_it_offers_itself_for_causal_models(architecture: str, chosen: str | None) -> None:
    from sglang_plug import Facts

    config = PretrainedConfig(architectures=[architecture])
    assert choose_component("model", Facts(model=config)) == chosen
    assert choose_component("attention", Facts(model=config)) is None
