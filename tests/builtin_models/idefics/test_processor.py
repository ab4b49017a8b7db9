"""Prompts of Idefics 3 contain tiles and their names, as transformers' do."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoTokenizer, Idefics3Processor

from sglang_plug import BuildEnv, ConfigError, MediaArray, MediaSource, RequestError
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.idefics.model import Idefics3
from sglang_plug_models.idefics.processor import load_processor
from tests.e2e.vision_families import FAMILIES, TEXT, Ids
from tests.e2e.vision_models import demo, png

FAMILY = FAMILIES["idefics3"]
IMAGE = "<image>"


def checkpoint(path: Path, *more: str) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(demo())
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE, *more]})
    image = tokenizer.convert_tokens_to_ids(IMAGE)
    text = {**TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    FAMILY.config(text, Ids(start=1, image=image, end=2, video=3)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    FAMILY.images().save_pretrained(path)
    return path


@pytest.mark.parametrize("size", [(24, 24), (72, 72), (72, 20), (20, 50)])
def test_prompts_and_pixels_are_transformers(tmp_path: Path, size: tuple[int, int]) -> None:
    path = checkpoint(tmp_path, *FAMILY.more)
    tokenizer = AutoTokenizer.from_pretrained(path)
    theirs = Idefics3Processor(FAMILY.images(), tokenizer, image_seq_len=16)
    text, file = f"Look at {IMAGE} and say.", png(*size)
    expected = theirs(text=text, images=[[Image.open(io.BytesIO(file)).convert("RGB")]], return_tensors="pt")
    result = load_processor(MediaSource(path=path)).prompt(tokenizer(text)["input_ids"], [file])
    assert result.tokens == expected["input_ids"][0].tolist()
    (media,) = result.media
    pixels = torch.frombuffer(bytearray(media.arrays["pixel_values"].data), dtype=torch.float32)
    assert torch.equal(pixels, expected["pixel_values"].flatten())
    tokens = torch.frombuffer(bytearray(media.arrays["tokens"].data), dtype=torch.int64)
    assert tokens.tolist() == result.tokens[media.start : media.end]


def test_a_tokenizer_without_frames_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the tokenizer has no <fake_token_around_image>"):
        load_processor(MediaSource(path=checkpoint(tmp_path)))


def test_names_keep_their_embeddings(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, *FAMILY.more)
    image = AutoTokenizer.from_pretrained(path).convert_tokens_to_ids(IMAGE)
    (media,) = load_processor(MediaSource(path=path)).prompt([image], [png(72, 20)]).media
    config = AutoConfig.from_pretrained(path)
    backend = TorchAttention(Idefics3.attention_shape(config), torch.device("cpu"), None)
    model = Idefics3(config, BuildEnv(attention=backend)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.mrope_positions([media], media.count)
    with torch.no_grad():
        (states,) = model.encode_images([media])
        tokens = torch.frombuffer(bytearray(media.arrays["tokens"].data), dtype=torch.int64)
        embedded = model.language_model.model.embed(tokens)
    named = tokens != image
    assert named.sum() > 8 and torch.equal(states[named], embedded[named])
    assert not torch.isclose(states[~named], embedded[~named]).all(-1).any()


def test_other_placeholders_than_tiles_need_are_refused(tmp_path: Path) -> None:
    config = FAMILY.config({**TEXT, "vocab_size": 96}, Ids(start=1, image=90, end=2, video=3))
    backend = TorchAttention(Idefics3.attention_shape(config), torch.device("cpu"), None)
    model = Idefics3(config, BuildEnv(attention=backend))
    arrays = dict(model.largest(40))
    assert model.num_image_tokens(arrays) == 32
    arrays["tokens"] = MediaArray("int64", (3,), bytes(24))
    with pytest.raises(RequestError, match="2 tiles and 0 placeholders"):
        model.num_image_tokens(arrays)
    del arrays["tokens"]
    with pytest.raises(RequestError, match="an image has no tokens"):
        model.num_image_tokens(arrays)
