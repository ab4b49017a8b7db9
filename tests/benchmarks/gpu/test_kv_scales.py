"""A checkpoint with large keys and values is the same model, and float8 needs its scales."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from benchmarks.common.models import write_model
from benchmarks.gpu.kv_scales import enlarge
from benchmarks.gpu.parts import NEAR_SHAPE, near, random_model


def without_scales(folder: Path) -> None:
    enlarge(folder)
    file = folder / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if not name.endswith("_scale")}, file)


@torch.inference_mode()
def test_the_model_is_the_same(tmp_path: Path) -> None:
    folder = write_model(NEAR_SHAPE, tmp_path)
    model = random_model(folder, "cpu")
    tokens = torch.tensor([[5, 9, 300, 7]])
    expected = model(tokens).logits
    without_scales(folder)
    result = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    keys = result.model.layers[0].self_attn.k_proj.weight
    assert keys.abs().max() > 100 * model.model.layers[0].self_attn.k_proj.weight.abs().max()
    torch.testing.assert_close(result(tokens).logits, expected, rtol=1e-3, atol=1e-3)


def test_without_scales_it_is_far() -> None:
    with pytest.raises(AssertionError, match="standard deviations below the best one"):
        near("cpu", "torch", "graphs", "fp8_e4m3", rescale=without_scales)
