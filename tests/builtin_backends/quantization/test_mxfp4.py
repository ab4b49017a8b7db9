"""MXFP4 experts are read in the same way as in transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from sglang_plug import BuildEnv, ConfigError, Quantization, QuantizationRequest
from sglang_plug_backends.quantization.mxfp4 import build
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.gpt_oss.model import GptOss

CONFIG = GptOssConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_local_experts=3,
    num_experts_per_tok=2,
)


def quantization(method: str = "mxfp4") -> Quantization:
    request = QuantizationRequest(device=torch.device("cpu"), dtype=torch.float32, stored={"quant_method": method})
    return build(request)


def model(quantization: Quantization | None, config: Any = CONFIG) -> GptOss:
    backend = TorchAttention(GptOss.attention_shape(config), torch.device("cpu"), None)
    result = GptOss(config, BuildEnv(attention=backend, quantization=quantization))
    result.quantize()
    return result


def stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return random values and exponents for experts' matrices, and other tensors unchanged."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: tensor}
    experts, size_in, size_out = tensor.shape
    generator = torch.Generator().manual_seed(len(name))
    blocks = torch.randint(0, 256, (experts, size_out, size_in // 32, 16), generator=generator)
    scales = torch.randint(110, 135, (experts, size_out, size_in // 32), generator=generator)
    return {f"{name}_blocks": blocks.to(torch.uint8), f"{name}_scales": scales.to(torch.uint8)}


def test_experts_are_read_as_transformers_does() -> None:
    weights = GptOssForCausalLM(CONFIG).float().state_dict()
    held, plain = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in weights.items():
        result = stored(name, tensor)
        held |= result
        if len(result) == 1:
            plain[name] = tensor
        else:
            plain[name] = convert_moe_packed_tensors(*result.values(), dtype=torch.float32)
            assert plain[name].shape == tensor.shape
    ours, expected = model(quantization()), model(None)
    ours.load_weights(held.items())
    expected.load_weights(plain.items())
    ours.prepare()
    expected.prepare()
    read, expected_parameters = dict(ours.named_parameters()), dict(expected.named_parameters())
    assert read.keys() == expected_parameters.keys()
    assert {name for name in read if "experts" in name}
    for name, parameter in read.items():
        torch.testing.assert_close(parameter, expected_parameters[name], rtol=0, atol=0)


def test_other_checkpoints_and_widths_are_refused() -> None:
    with pytest.raises(ConfigError, match="and not 'awq'"):
        quantization("awq")
    narrow = GptOssConfig(**{**CONFIG.to_dict(), "intermediate_size": 24})
    with pytest.raises(ConfigError, match="has 24 columns: in MXFP4"):
        model(quantization(), narrow)
