"""Vision-language families: outputs equal transformers', checkpoints of all versions load, and bad ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor

from sglang_plug import BuildEnv, Media, MediaArray, Model, Plugins, RequestError, SupportsImages, WeightError
from sglang_plug.testing import check_model
from sglang_plug_backends.torch_native.attention import TorchAttention
from tests.e2e.vision_families import FAMILIES, TEXT, Ids

IDS = Ids(start=92, image=90, end=93, video=91)
SIZES = [(64, 24), (30, 70)]


def config(family: str) -> Any:
    text = {**TEXT, "vocab_size": 96, "eos_token_id": 2}
    return FAMILIES[family].config(text, IDS)


def built(family: str) -> Model:
    configuration = config(family)
    result: type[Model] = Plugins.discover().get("model", FAMILIES[family].architecture).load(Model)
    backend = TorchAttention(result.attention_shape(configuration), torch.device("cpu"), None)
    return result(configuration, BuildEnv(attention=backend)).float().eval()


@torch.no_grad()
def reference(family: str) -> Any:
    model = getattr(transformers, FAMILIES[family].architecture)(config(family)).float().eval()
    for parameter in model.parameters():
        parameter.normal_(std=0.2)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_text_against_transformers(family: str) -> None:
    # outputs of recurrent states are normalised, which amplifies rounding
    tolerance = 1e-3 if family.startswith("qwen3.5") else 1e-4
    check_model(FAMILIES[family].architecture, config(family), tolerance=tolerance)


def mrope_hub_names(name: str) -> str:
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def vision_encoder_hub_names(name: str) -> str:
    """Return checkpoint names of the first version, whose vision encoder has a name part that later versions omit."""
    name = name.replace("model.language_model.", "language_model.model.").replace("lm_head.", "language_model.lm_head.")
    prefix = "vision_tower." if any(item in name for item in FLAT) else TOWER
    return (
        name.replace("model.vision_tower.", prefix)
        .replace(2 * "vision_model.", "vision_model.")
        .replace("model.multi_modal_projector.", "multi_modal_projector.")
    )


TOWER = "vision_tower.vision_model."
FLAT = (
    "transformer.",
    "patch_conv",
    "ln_pre",
    ".encoder.layer.",
    ".cls_token",
    "patch_embeddings",
    "position_embeddings",
)
"""Name parts in vision encoders that never had an enclosing part."""
NAMED = ("idefics3", "smolvlm")
"""Families with tokens between the tiles of an image."""
ROW_BY_ROW, IN_TILES = ("mistral3", "ministral3"), ("llava-next", "llava-onevision")
"""Families whose images have tokens that end rows, and families whose images have a size besides pixels."""
ON_THE_HUB: dict[str, Callable[[str], str]] = {
    "qwen2-vl": mrope_hub_names,
    "qwen2.5-vl": mrope_hub_names,
    "llava": vision_encoder_hub_names,
    "llava-next": vision_encoder_hub_names,
    "llava-onevision": vision_encoder_hub_names,
    "gemma3": vision_encoder_hub_names,
    "mistral3": vision_encoder_hub_names,
    "ministral3": vision_encoder_hub_names,
    "internvl": vision_encoder_hub_names,
}
"""Checkpoint names on the Hub that differ from those of the current transformers."""
UPRIGHT = (".experts.gate_up_proj", ".experts.down_proj")


def published(family: str, weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    rename = ON_THE_HUB.get(family, str)
    for name, tensor in weights.items():
        transposed = family == "qwen3-vl-moe" and name.endswith(UPRIGHT)
        yield rename(name), tensor.transpose(1, 2) if transposed else tensor


def arrays(family: str) -> list[dict[str, Tensor]]:
    """Return the arrays of transformers' processor for each of two images."""
    processor, result = FAMILIES[family].images(), []
    own = {"patch_size": 8} if family in ROW_BY_ROW else {}
    for width, height in SIZES:
        noise = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(width))
        image = Image.fromarray(noise.to(torch.uint8).numpy())
        result.append(dict(processor(images=[image], return_tensors="pt", **own)))
    return result


def media(inputs: dict[str, Tensor], count: int) -> Media:
    kept = {name: item for name, item in inputs.items() if name in ("pixel_values", "image_grid_thw", "row_ends")}
    if kept["pixel_values"].dim() == 5:
        more = {"tokens": inputs["tokens"]} if "tokens" in inputs else {"image_sizes": inputs["image_sizes"][0]}
        kept = {"pixel_values": kept["pixel_values"][0], **more}
    return Media.of(
        0,
        count,
        {
            name: MediaArray(str(item.dtype).removeprefix("torch."), tuple(item.shape), item.numpy().tobytes())
            for name, item in kept.items()
        },
    )


def reference_states(theirs: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return transformers' states of an image, ``[count, hidden]`` or ``[count, n, hidden]``."""
    options = {name: item for name, item in inputs.items() if name in ("image_grid_thw", "image_sizes")}
    result = theirs.get_image_features(inputs["pixel_values"], **options)
    pooled = result.pooler_output
    states: Tensor = pooled.flatten(0, 1) if isinstance(pooled, Tensor) and pooled.dim() == 3 else pooled[0]
    deepstack = getattr(result, "deepstack_features", None)
    return states if deepstack is None else torch.stack([states, *(item[0] for item in deepstack)], dim=1)


@pytest.mark.parametrize("version", ["now", "published"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_images_against_transformers(family: str, version: str) -> None:
    theirs, ours = reference(family), built(family)
    weights = theirs.state_dict()
    ours.load_weights(weights.items() if version == "now" else published(family, weights))
    assert isinstance(ours, SupportsImages)
    expected, media_list = [], []
    for inputs in arrays(family):
        states = reference_states(theirs, inputs)
        if family in ROW_BY_ROW:  # a row ends with the embedding of a token
            rows = inputs["pixel_values"].shape[2] // 8
            inputs["row_ends"] = torch.tensor([IDS.video] * (rows - 1) + [IDS.end])
            ends = theirs.get_input_embeddings()(inputs["row_ends"])
            states = torch.cat((states.view(rows, -1, states.shape[-1]), ends[:, None]), dim=1).flatten(0, 1)
        if family in NAMED:
            inputs["tokens"] = torch.full((len(states),), IDS.image)
        expected.append(states)
        media_list.append(media(inputs, len(states)))
    media_in_prompt = [Media.of(200 * index, item.count, item.arrays) for index, item in enumerate(media_list)]
    ours.mrope_positions(media_in_prompt, 400)
    for embedding, other in zip(ours.encode_images(media_list), expected, strict=True):
        assert other.std() > 0.01
        torch.testing.assert_close(embedding, other, atol=1e-4, rtol=1e-4)
    text = dict(ours.named_parameters())
    name = next(name for name in text if name.endswith("embed_tokens.weight"))
    assert torch.equal(text[name], theirs.get_input_embeddings().weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_and_left_over_weights_are_named(family: str) -> None:
    weights = reference(family).state_dict()
    root = next(item for item in ("visual.", "vision_tower.", "model.vision_model.") if item in "".join(weights))
    norm = next(name for name in weights if root in name and "norm" in name)
    part = "visual.body" if "visual." in norm else "vision_tower.body"
    with pytest.raises(WeightError, match=f"unfilled, first '{part}"):
        built(family).load_weights((name, tensor) for name, tensor in weights.items() if name != norm)
    more = f"{root}more.weight"
    with pytest.raises(WeightError, match=f"{part}.more.weight"):
        built(family).load_weights([*weights.items(), (more, torch.zeros(1))])


def head_of(family: str, weights: dict[str, Tensor]) -> Tensor:
    """Return the head ``[vocabulary, hidden]`` of a model with these weights."""
    model = built(family)
    model.load_weights(weights.items())
    model.prepare()
    return model.head(torch.eye(64)).T


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_head_of_its_own_or_the_embeddings(family: str) -> None:
    theirs = reference(family)
    weights = dict(theirs.state_dict())
    if theirs.config.tie_word_embeddings:
        del weights["lm_head.weight"]
        torch.testing.assert_close(head_of(family, weights), theirs.get_input_embeddings().weight)
    # published checkpoints have both matrices although they declare them tied
    if not theirs.config.tie_word_embeddings or family in ROW_BY_ROW:
        weights["lm_head.weight"] = torch.randn(96, 64)
        torch.testing.assert_close(head_of(family, weights), weights["lm_head.weight"])


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_an_example_is_the_largest_image_there_may_be(family: str) -> None:
    model = built(family)
    model.load_weights(reference(family).state_dict().items())
    assert isinstance(model, SupportsImages)
    image = model.example(MAX_SIZE)
    assert image is not None and image.start == 0
    model.mrope_positions([image], image.count + 1)
    (states,) = model.encode_images([image])
    assert len(states) == image.count == LARGEST.get(family, 144)
    assert model.example(15) is None or family not in ("llava", "gemma3", "internvl", *IN_TILES)


LARGEST = {"llava": 16, "gemma3": 16, "mistral3": 132, "ministral3": 132}
LARGEST |= {"llava-next": 16 + 8 * 9, "llava-onevision": 16 + 5 * 6, "internvl": 144, "smolvlm": 148}
MAX_SIZE = 150
"""Maximum tokens of an image: 12 x 12, and one more for each row of 11."""


@pytest.mark.parametrize("family", FAMILIES)
def test_media_of_another_processor_are_refused(family: str) -> None:
    model = built(family)
    assert isinstance(model, SupportsImages)
    others = Media.of(0, 4, {"grid": MediaArray("int64", (1,), bytes(8))})
    with pytest.raises(RequestError, match="media processor makes them: there are grid"):
        model.mrope_positions([others], 9)
    inputs = arrays(family)[0]
    if family in NAMED:
        inputs["tokens"] = torch.full((16 if family == "idefics3" else 4,), IDS.image)
        inputs["pixel_values"] = inputs["pixel_values"][:, :1]
    if family in ROW_BY_ROW:
        inputs["row_ends"] = torch.zeros(len(inputs["pixel_values"][0, 0]) // 8, dtype=torch.int64)
    with pytest.raises(RequestError, match="has .*tokens"):
        model.mrope_positions([media(inputs, 3)], 9)
