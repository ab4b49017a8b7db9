"""Qwen2-VL and Qwen2.5-VL: text as transformers, names of every version, positions, angles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding

from sglang_plug import BuildEnv, Media, MediaArray, RequestError, WeightError
from sglang_plug.testing import check_model
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.qwen_vl.model import GridRope, Qwen25VL

TEXT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
}
VISION: dict[str, Any] = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4}
IDS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
NEWER = {"intermediate_size": 40, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}
CONFIG = Qwen2_5_VLConfig(text_config=TEXT, vision_config={**VISION, **NEWER}, **IDS)
OLDER = {"embed_dim": 32, "mlp_ratio": 2}


def test_text_against_transformers() -> None:
    check_model("Qwen2_5_VLForConditionalGeneration", CONFIG)
    older = Qwen2VLConfig(text_config=TEXT, vision_config={**VISION, **OLDER}, tie_word_embeddings=True, **IDS)
    check_model("Qwen2VLForConditionalGeneration", older)


def built() -> Qwen25VL:
    backend = TorchAttention(Qwen25VL.attention_shape(CONFIG), torch.device("cpu"), None)
    return Qwen25VL(CONFIG, BuildEnv(attention=backend))


NAMES: dict[str, Callable[[str], str]] = {
    "now": lambda name: name,
    "on the hub": lambda name: name.replace("model.visual.", "visual.").replace("model.language_model.", "model."),
}


@pytest.mark.parametrize("version", NAMES)
def test_names_of_every_version(version: str) -> None:
    weights = Qwen2_5_VLForConditionalGeneration(CONFIG).state_dict()
    model = built()
    model.load_weights((NAMES[version](name), tensor) for name, tensor in weights.items())
    patches = weights["model.visual.patch_embed.proj.weight"]
    assert torch.equal(model.visual.body.patch_embed.proj.weight, patches)
    assert torch.equal(model.model.embed_tokens.weight, weights["model.language_model.embed_tokens.weight"])


def test_missing_and_left_over_weights_are_named() -> None:
    weights = Qwen2_5_VLForConditionalGeneration(CONFIG).state_dict()
    lacking = {name: one for name, one in weights.items() if not name.endswith("merger.ln_q.weight")}
    with pytest.raises(WeightError, match="visual.body.merger.ln_q.weight"):
        built().load_weights(lacking.items())
    with pytest.raises(WeightError, match="visual.body.more.weight"):
        built().load_weights([*weights.items(), ("visual.more.weight", torch.zeros(1))])


def grid(*numbers: int) -> MediaArray:
    return MediaArray("int64", (1, 3), torch.tensor(numbers).numpy().tobytes())


def image(start: int, rows: int, columns: int) -> Media:
    patches = MediaArray("float32", (4 * rows * columns, 96), b"")
    arrays = {"image_grid_thw": grid(1, 2 * rows, 2 * columns), "pixel_values": patches}
    return Media.of(start, rows * columns, arrays)


def test_coordinates_of_text_and_grids() -> None:
    found = built().coordinates([image(2, 2, 3), image(9, 1, 1)], 11)
    assert found.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7],
    ]


def test_grids_that_are_not_the_images_are_refused() -> None:
    good = image(0, 2, 2)
    for arrays in (
        {},
        {**good.arrays, "image_grid_thw": grid(1, 4, 6)},
        {**good.arrays, "image_grid_thw": grid(2, 4, 4)},
    ):
        with pytest.raises(RequestError, match="media processor"):
            built().coordinates([Media.of(0, 4, arrays)], 9)


def test_angles_against_transformers() -> None:
    config = CONFIG.text_config
    positions = torch.randint(0, 200, (3, 17), generator=torch.Generator().manual_seed(1))
    ours = GridRope.of(config, 8)(positions, torch.float32)
    theirs = Qwen2_5_VLRotaryEmbedding(config)(torch.zeros(1), positions[:, None])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other[0])
    for one, other in zip(
        GridRope.of(config, 8)(positions[0], torch.float32),
        GridRope.of(config, 8)(positions[:1].expand(3, -1), torch.float32),
        strict=True,
    ):
        assert torch.equal(one, other)
