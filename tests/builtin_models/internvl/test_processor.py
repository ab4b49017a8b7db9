"""Prompts of InternVL: the tiles of images, and the tokens around an image."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from sglang_plug import BuildEnv, ConfigError, MediaSource
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.internvl.model import InternVL
from sglang_plug_models.internvl.processor import load_processor
from tests.e2e.vision_families import FAMILIES, SPECIAL, TEXT, Ids
from tests.e2e.vision_models import demo, png

FAMILY = FAMILIES["internvl"]


def checkpoint(path: Path, *more: str, named: bool = False) -> Path:
    names = {name: SPECIAL[index] for name, index in FAMILY.of_tokenizer.items()} if named else {}
    tokenizer = AutoTokenizer.from_pretrained(demo(), extra_special_tokens=names)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL, *more]})
    ids = Ids(*(tokenizer.convert_tokens_to_ids(item) for item in SPECIAL))
    text = {**TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    FAMILY.config(text, ids).save_pretrained(path)
    tokenizer.save_pretrained(path)
    FAMILY.images().save_pretrained(path)
    return path


@pytest.mark.parametrize(("size", "tiles"), [((24, 24), 1), ((48, 24), 3), ((24, 72), 4)])
@pytest.mark.parametrize("named", [True, False])
def test_tiles_and_the_tokens_around(tmp_path: Path, size: tuple[int, int], tiles: int, named: bool) -> None:
    path = checkpoint(tmp_path, *(() if named else ("<img>", "</img>")), named=named)
    ends = ("<|vision_start|>", "<|vision_end|>") if named else ("<img>", "</img>")
    begin, end, image = map(AutoTokenizer.from_pretrained(path).convert_tokens_to_ids, (*ends, "<|image_pad|>"))
    result = load_processor(MediaSource(path=path)).prompt([5, image, 6], [png(*size)])
    assert result.tokens == [5, begin, *[image] * 16 * tiles, end, 6]
    (media,) = result.media
    assert (media.start, media.count) == (2, 16 * tiles)
    assert media.arrays["pixel_values"].shape == (tiles, 3, 24, 24)


def test_a_tokenizer_without_them_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the tokenizer has no <img>, </img>"):
        load_processor(MediaSource(path=checkpoint(tmp_path)))


def test_patches_that_cannot_be_joined_are_refused() -> None:
    configuration = FAMILY.config(
        {**TEXT, "vocab_size": 96, "eos_token_id": 2}, Ids(start=92, image=90, end=93, video=91)
    )
    configuration.vision_config.image_size = (21, 21)
    backend = TorchAttention(InternVL.attention_shape(configuration), torch.device("cpu"), None)
    with pytest.raises(ConfigError, match="cannot be joined 2 by 2"):
        InternVL(configuration, BuildEnv(attention=backend))
