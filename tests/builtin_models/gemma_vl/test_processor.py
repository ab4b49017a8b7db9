"""Prompts with images are tokenized as by transformers' processor."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer, Gemma3Processor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from sglang_plug import ConfigError, MediaError, MediaSource
from sglang_plug_models.gemma_vl.processor import GemmaProcessor, load_processor
from tests.e2e.vision_families import FAMILIES, SPECIAL, TEXT, Ids
from tests.e2e.vision_models import demo, png

START, IMAGE, _, SOFT = SPECIAL
RUNS = ["\n", "\n\n", "\n\n\n", "\n\n\n\n"]
TEXTS = [
    f"{IMAGE}What is in it?",
    f"user\n{IMAGE}What is in it?",
    f"one\n\n{IMAGE}\ntwo {IMAGE}{IMAGE}",
    f"{IMAGE}\n\n{IMAGE}",
    f"lines\n\n\nfar away\n\n {IMAGE} \n end\n",
    "no image\n\nat all",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint without weights, whose tokenizer has a token for several newlines, as Gemma's has."""
    path = tmp_path_factory.mktemp("gemma3")
    names = {"boi_token": IMAGE, "eoi_token": START, "image_token": SOFT}
    tokenizer = AutoTokenizer.from_pretrained(demo(), extra_special_tokens=names)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    tokenizer.add_tokens(RUNS)
    ids = Ids(*(tokenizer.convert_tokens_to_ids(item) for item in SPECIAL))
    text = {**TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    config = FAMILIES["gemma3"].config(text, ids)
    config.architectures = ["Gemma3ForConditionalGeneration"]
    config.save_pretrained(path)
    tokenizer.save_pretrained(path)
    FAMILIES["gemma3"].images().save_pretrained(path)
    return path


@pytest.mark.parametrize("text", TEXTS)
def test_against_transformers(folder: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    theirs = Gemma3Processor(Gemma3ImageProcessorPil.from_pretrained(folder), tokenizer, image_seq_length=16)
    expected = tokenizer(text.replace(IMAGE, theirs.full_image_sequence), add_special_tokens=False)["input_ids"]
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    images = [png(40, 30, seed) for seed in range(text.count(IMAGE))]
    result = load_processor(MediaSource(path=folder)).prompt(tokens, images)
    assert result.tokens == expected
    soft = tokenizer.convert_tokens_to_ids(SOFT)
    assert [image.count for image in result.media] == [16] * len(images)
    assert all(set(result.tokens[image.start : image.end]) == {soft} for image in result.media)


def test_newlines_of_text_without_images_stay_as_they_are(folder: Path) -> None:
    """The newlines stay the same however the caller divides the text."""
    first, second = (AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(run) for run in RUNS[:2])
    processor: GemmaProcessor = load_processor(MediaSource(path=folder))
    assert processor.prompt([5, first, first, second, 6, first], []).tokens == [5, first, first, second, 6, first]


def test_a_placeholder_too_many_is_refused(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    image, soft = (tokenizer.convert_tokens_to_ids(item) for item in (IMAGE, SOFT))
    with pytest.raises(MediaError, match="placeholders for 2 images, and 1 were sent"):
        load_processor(MediaSource(path=folder)).prompt([image, soft], [png(8, 8)])


def test_a_checkpoint_without_a_processor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not say how images are prepared"):
        load_processor(MediaSource(path=tmp_path))
