"""Qwen's vision-language models: M-RoPE position ids and angles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen3VLConfig, Qwen3VLMoeConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from sglang_plug import BuildEnv, ConfigError, Media, MediaArray, RequestError, WeightError
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.common.mrope import InterleavedMRope, MRope
from sglang_plug_models.qwen_vl.model import Qwen3VL, Qwen3VLMoe, Qwen25VL

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


def built() -> Qwen25VL:
    backend = TorchAttention(Qwen25VL.attention_shape(CONFIG), torch.device("cpu"), None)
    return Qwen25VL(CONFIG, BuildEnv(attention=backend))


def grid(*numbers: int) -> MediaArray:
    return MediaArray("int64", (1, 3), torch.tensor(numbers).numpy().tobytes())


def image(start: int, rows: int, columns: int) -> Media:
    patches = MediaArray("float32", (4 * rows * columns, 96), b"")
    arrays = {"image_grid_thw": grid(1, 2 * rows, 2 * columns), "pixel_values": patches}
    return Media.of(start, rows * columns, arrays)


def test_mrope_positions_of_text_and_images() -> None:
    result = built().mrope_positions([image(2, 2, 3), image(9, 1, 1)], 11)
    assert result.tolist() == [
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
            built().mrope_positions([Media.of(0, 4, arrays)], 9)


DEEP = Qwen3VLConfig(
    text_config={**TEXT, "head_dim": 8},
    vision_config={**VISION, "out_hidden_size": 32},
    **IDS,
)


@pytest.mark.parametrize(
    ("config", "ours", "theirs"),
    [
        (CONFIG.text_config, MRope, Qwen2_5_VLRotaryEmbedding),
        (DEEP.text_config, InterleavedMRope, Qwen3VLTextRotaryEmbedding),
    ],
    ids=["sections one after the other", "interleaved"],
)
def test_angles_against_transformers(config: Any, ours: type[MRope], theirs: type[Any]) -> None:
    positions = torch.randint(0, 200, (3, 17), generator=torch.Generator().manual_seed(1))
    rope = ours.of(config, 8)
    for item, other in zip(
        rope(positions, torch.float32), theirs(config)(torch.zeros(1), positions[:, None]), strict=True
    ):
        torch.testing.assert_close(item, other[0])
    equal = positions[:1].expand(3, -1)
    for item, other in zip(rope(positions[0], torch.float32), rope(equal, torch.float32), strict=True):
        assert torch.equal(item, other)


def test_the_family_decides_how_rows_take_turns() -> None:
    """The model ignores ``mrope_interleaved``, as transformers does."""
    backend = TorchAttention(Qwen3VL.attention_shape(DEEP), torch.device("cpu"), None)
    deep = Qwen3VL(DEEP, BuildEnv(attention=backend))
    assert type(deep.model.rope) is InterleavedMRope
    assert type(built().model.rope) is MRope


@pytest.mark.parametrize(
    ("kind", "sections", "theirs"),
    [
        (MRope, [16, 24, 24], Qwen2_5_VLRotaryEmbedding),
        (InterleavedMRope, [24, 20, 20], Qwen3VLTextRotaryEmbedding),
    ],
)
def test_usual_sections(kind: type[MRope], sections: list[int], theirs: type[Any]) -> None:
    config = (CONFIG if kind is MRope else DEEP).text_config
    configuration = type(config)(
        **{**TEXT, "head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    )
    assert kind.of(configuration, 128).sections == sections == list(theirs(configuration).mrope_section)


def test_sections_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"mrope_section \[2, 1, 1\] does not fit 8 pairs"):
        MRope.of(CONFIG.text_config, 16)


@pytest.mark.parametrize(("width", "matrix"), [(16, "gate_up_proj"), (32, "down_proj")])
def test_square_matrices_of_experts_are_refused(width: int, matrix: str) -> None:
    """Checkpoints store experts' matrices in either layout, which cannot be recognised for square matrices."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": width}
    vision = {**VISION, "out_hidden_size": 32}
    config = Qwen3VLMoeConfig(text_config={**TEXT, "head_dim": 8, **experts}, vision_config=vision, **IDS)
    backend = TorchAttention(Qwen3VLMoe.attention_shape(config), torch.device("cpu"), None)
    model = Qwen3VLMoe(config, BuildEnv(attention=backend))
    name = f"model.language_model.layers.0.mlp.experts.{matrix}"
    with pytest.raises(WeightError, match=f"{matrix}.*square .32 x 32.*transposed"):
        model.load_weights([(name, torch.zeros(4, 32, 32))])
