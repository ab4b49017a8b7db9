"""Images of any size are divided into rows of patches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

from sglang_plug import ConfigError, MediaSource
from sglang_plug_models.mistral_vl.processor import load_processor
from tests.e2e.vision_families import FAMILIES, SPECIAL, TEXT, Ids
from tests.e2e.vision_models import demo, png

NAMES = {"image_token": "<|image_pad|>", "image_break_token": "<|video_pad|>", "image_end_token": "<|vision_end|>"}


def checkpoint(path: Path, *more: str) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(demo())
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL, *more]})
    ids = Ids(*(tokenizer.convert_tokens_to_ids(item) for item in SPECIAL))
    text = {**TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    FAMILIES["mistral3"].config(text, ids).save_pretrained(path)
    tokenizer.save_pretrained(path)
    FAMILIES["mistral3"].images().save_pretrained(path)
    return path


@pytest.mark.parametrize("size", [(64, 24), (30, 70), (8, 8), (200, 9), (65, 65)])
def test_rows_and_columns(tmp_path: Path, size: tuple[int, int]) -> None:
    """The numbers of rows and columns equal transformers'; a separate token ends each row."""
    path = checkpoint(tmp_path)
    (path / "processor_config.json").write_text(json.dumps(NAMES))
    tokenizer = AutoTokenizer.from_pretrained(path)
    image, row_end, end = map(tokenizer.convert_tokens_to_ids, NAMES.values())
    height, width = get_resize_output_image_size(np.zeros((*size[::-1], 3)), (64, 64), (8, 8))
    rows, columns = height // 8, width // 8
    result = load_processor(MediaSource(path=path)).prompt([5, image, 6], [png(*size)])
    (media,) = result.media
    assert media.arrays["pixel_values"].shape == (1, 3, height, width)
    row = [image] * columns
    assert result.tokens == [5, *[*row, row_end] * (rows - 1), *row, end, 6]
    assert (media.start, media.end) == (1, len(result.tokens) - 1)
    ends = torch.frombuffer(bytearray(media.arrays["row_ends"].data), dtype=torch.int64)
    assert ends.tolist() == [*[row_end] * (rows - 1), end]


def test_the_usual_names_of_what_ends_a_row(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "[IMG_BREAK]", "[IMG_END]")
    tokenizer = AutoTokenizer.from_pretrained(path)
    result = load_processor(MediaSource(path=path)).prompt(
        [tokenizer.convert_tokens_to_ids("<|image_pad|>")], [png(16, 16)]
    )
    ends = [tokenizer.convert_tokens_to_ids(item) for item in ("[IMG_BREAK]", "[IMG_END]")]
    assert [result.tokens[2], result.tokens[5]] == ends


def test_a_tokenizer_without_them_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the tokenizer has no \[IMG_BREAK\], \[IMG_END\]"):
        load_processor(MediaSource(path=checkpoint(tmp_path)))
