"""Tokens and tiles of images of any resolution, in prompts with one image and with several, equal transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlavaNextConfig, LlavaOnevisionConfig, PreTrainedTokenizerFast
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

from sglang_plug import BuildEnv, ConfigError, MediaSource, RequestError
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.llava.anyres import LlavaNext, LlavaOnevision
from sglang_plug_models.llava.processor import TilesProcessor, load_tiles_processor
from sglang_plug_models.llava.tiles import num_image_tokens, tiling
from tests.e2e.vision_families import CLIP_SIZES, FAMILIES, TEXT, Ids
from tests.e2e.vision_models import png

IDS = Ids(start=92, image=90, end=93, video=91)
SIDES = (1, 7, 24, 25, 48, 100, 333)
NAMES = ("llava-next", "llava-onevision")


def config(family: str) -> Any:
    return FAMILIES[family].config({**TEXT, "vocab_size": 96, "eos_token_id": 2}, IDS)


class WithoutVideos(LlavaOnevisionProcessor):
    """Transformers' processor without its video processor, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Skip the check, which would refuse the missing video processor."""
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def transformers_processor(family: str) -> Any:
    """Return transformers' processor, with a tokenizer that knows only the image token."""
    vision, images = config(family).vision_config, FAMILIES[family].images()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"<image>": 0, "<video>": 1}, unk_token="<video>")),
        additional_special_tokens=["<image>", "<video>"],
    )
    if family == "llava-next":
        return LlavaNextProcessor(
            images, tokenizer, patch_size=vision.patch_size, vision_feature_select_strategy="full"
        )
    return WithoutVideos(
        images,
        tokenizer,
        video_processor=None,
        num_image_tokens=(vision.image_size // vision.patch_size) ** 2,
        vision_feature_select_strategy="full",
        vision_aspect_ratio=config(family).vision_aspect_ratio,
    )


@pytest.mark.parametrize("family", NAMES)
def test_tokens_and_tiles_of_every_size(family: str) -> None:
    configuration, theirs = config(family), transformers_processor(family)
    for height in SIDES:
        for width in SIDES:
            if max(height, width) > 48 * min(height, width):
                continue
            prompt = theirs(images=[Image.new("RGB", (width, height))], text="<image>", return_tensors="np")
            assert num_image_tokens(configuration, height, width) == prompt["input_ids"].size, (height, width)
            assert tiling(configuration, height, width).tiles == len(prompt["pixel_values"][0])


def checkpoint(path: Path, family: str) -> Path:
    config(family).save_pretrained(path)
    FAMILIES[family].images().save_pretrained(path)
    return path


def processor(path: Path, family: str) -> TilesProcessor:
    return load_tiles_processor(MediaSource(path=checkpoint(path, family)))


@pytest.mark.parametrize(("family", "tiles"), [("llava-next", [4, 3]), ("llava-onevision", [1, 1])])
def test_prompts_with_several_images(tmp_path: Path, family: str, tiles: list[int]) -> None:
    """LLaVA-OneVision uses tiles only for prompts with one image, as in its training."""
    llava_processor = processor(tmp_path, family)
    prompt = llava_processor.prompt([90, 5], [png(64, 24)])
    two = llava_processor.prompt([90, 5, 90], [png(64, 24), png(24, 70)])
    assert prompt.media[0].arrays["pixel_values"].shape[0] == 4
    assert [media.arrays["pixel_values"].shape[0] for media in two.media] == tiles
    model = built(family)
    model.mrope_positions(two.media, len(two.tokens))
    assert [len(states) for states in model.encode_images(two.media)] == [media.count for media in two.media]
    expected = FAMILIES[family].images()(
        images=[[Image.open(file).convert("RGB") for file in saved(tmp_path)]], return_tensors="np"
    )
    for media, pixels, count in zip(two.media, expected["pixel_values"], tiles, strict=True):
        result = torch.frombuffer(bytearray(media.arrays["pixel_values"].data), dtype=torch.float32)
        assert torch.equal(result, torch.tensor(pixels[:count]).flatten())


def saved(path: Path) -> list[Path]:
    files = [path / "wide.png", path / "tall.png"]
    for file, size in zip(files, [(64, 24), (24, 70)], strict=True):
        file.write_bytes(png(*size))
    return files


def built(family: str) -> LlavaNext:
    configuration, kind = config(family), LlavaNext if family == "llava-next" else LlavaOnevision
    backend = TorchAttention(kind.attention_shape(configuration), torch.device("cpu"), None)
    return kind(configuration, BuildEnv(attention=backend)).float().eval()


def test_other_resolutions_in_the_two_files_are_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "llava-next")
    images = json.loads((path / "preprocessor_config.json").read_text())
    (path / "preprocessor_config.json").write_text(json.dumps({**images, "image_grid_pinpoints": [[24, 24]]}))
    with pytest.raises(ConfigError, match=r"image_grid_pinpoints of preprocessor_config.json \(\[\[24, 24\]\]\)"):
        load_tiles_processor(MediaSource(path=path))


def test_media_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    model, llava_processor = built("llava-next"), processor(tmp_path, "llava-next")
    (media,) = llava_processor.prompt([90], [png(64, 24)]).media
    arrays = dict(media.arrays)
    del arrays["image_sizes"]
    with pytest.raises(RequestError, match="an image has no size"):
        model.num_image_tokens(arrays)
    (other,) = llava_processor.prompt([90], [png(24, 60)]).media
    with pytest.raises(RequestError, match="3 tiles of .* this model expects 4 of 24 x 24"):
        model.num_image_tokens({**media.arrays, "pixel_values": other.arrays["pixel_values"]})


def test_a_vision_encoder_with_extra_states_is_refused() -> None:
    vision = {"model_type": "clip_vision_model", **CLIP_SIZES, "image_size": 24, "patch_size": 6}
    configuration = LlavaNextConfig(
        text_config={**TEXT, "vocab_size": 96, "model_type": "llama"},
        vision_config=vision,
        vision_feature_select_strategy="full",
    )
    with pytest.raises(ConfigError, match="'full' does not leave one state for each patch"):
        LlavaNext(
            configuration,
            BuildEnv(attention=TorchAttention(LlavaNext.attention_shape(configuration), torch.device("cpu"), None)),
        )


def test_how_many_tiles_count_is_read_from_the_name() -> None:
    configuration = LlavaOnevisionConfig(vision_aspect_ratio="anyres_max_9")
    large = tiling(configuration, 2304, 2304)
    assert large.tiles == 37
    assert large.shrunk(27, 9) == (81, 81) and large.shrunk(27, None) == (162, 162)
