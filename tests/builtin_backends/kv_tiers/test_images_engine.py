"""Whole engines of vision-language models: an image that was encoded once is not encoded again by another engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import Kernels, Model
from sglang_plug_backends.multimodal.extension import Multimodal
from tests.builtin_backends.kv_tiers.engine_requests import answer, request, stored
from tests.e2e.vision_models import VisionModel, make_vision_model, png

pytestmark = pytest.mark.whole_engine

Serve = Callable[..., Any]
IMAGES = (png(64, 24, 1), png(30, 70, 2))
DEEP, ONE = "qwen3-vl", "qwen2.5-vl"
"""A model whose images have embeddings for several layers, and one whose images have one each."""


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], VisionModel]:
    return cache(lambda family: make_vision_model(family, tmp_path_factory.mktemp(family)))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that receives the digest of each image that an engine encodes."""
    digests, install = list[bytes](), Multimodal.install

    def counting(extension: Multimodal, model: Model, kernels: Kernels) -> None:
        encode: Any = model.encode_images  # type: ignore[operator]
        model.encode_images = lambda media: digests.extend(image.digest for image in media) or encode(media)  # type: ignore[assignment]
        install(extension, model, kernels)

    monkeypatch.setattr(Multimodal, "install", counting)
    return digests


def ask(engine: Any, model: VisionModel, begin: str, images: tuple[bytes, ...] = IMAGES, **fields: Any) -> Any:
    """Return the output of a prompt with a text, images, and a text after them."""
    pads = model.family.in_text * len(images)
    prompt = model.prompt(f"{begin} {pads} " + "What are the differences between them? " * 8, images)
    return answer(engine, prompt.tokens, media=prompt.media, **fields)


@pytest.mark.parametrize("family", [ONE, DEEP, "gemma3", "llava", "qwen3.5"])
def test_another_prompt_with_the_same_images_encodes_nothing(
    serve: Serve, config: Any, vision_model: Any, encoded: list[bytes], family: str
) -> None:
    model = vision_model(family)
    options = {"model": model.path, "slots": 1024}
    first = serve(config("host", "disk", **options))
    ask(first, model, "Look.")
    assert len(encoded) == len(IMAGES)
    expected = ask(serve(config(**options)), model, "Or else, look closely:")
    assert len(encoded) == 2 * len(IMAGES)
    second = serve(config("host", "disk", **options))
    output = ask(second, model, "Or else, look closely:")
    assert (output.tokens, len(encoded)) == (expected.tokens, 2 * len(IMAGES))
    again = ask(second, model, "And once more:", images=IMAGES[1:])
    assert len(encoded) == 2 * len(IMAGES)
    assert again.tokens == ask(serve(config(**options)), model, "And once more:", images=IMAGES[1:]).tokens


@pytest.mark.parametrize("family", [ONE, "gemma3", "qwen3.5"])
def test_keys_and_values_behind_images_are_loaded(
    serve: Serve, config: Any, vision_model: Any, encoded: list[bytes], family: str
) -> None:
    model = vision_model(family)
    expected = ask(serve(config("disk", model=model.path, slots=1024)), model, "Look.")
    output = ask(serve(config("disk", model=model.path, slots=1024)), model, "Look.")
    assert (output.tokens, len(encoded)) == (expected.tokens, len(IMAGES))
    length = len(model.prompt(f"Look. {model.family.in_text * 2} ", IMAGES).tokens)
    assert dict(output.loaded_tokens)["disk"] == output.cached_tokens > length
    other = ask(serve(config("disk", model=model.path, slots=1024)), model, "Look.", images=IMAGES[::-1])
    assert other.cached_tokens < length, "another image at the same position"


def test_tenants_share_no_embeddings(serve: Serve, config: Any, vision_model: Any, encoded: list[bytes]) -> None:
    model = vision_model(ONE)
    for salts, count in (("a", 2), ("b", 4), ("a", 4)):
        ask(serve(config("disk", model=model.path, slots=1024)), model, f"Look, {count}.", salt=salts)
        assert len(encoded) == count


def test_no_embedding_is_left_after_a_flush(serve: Serve, config: Any, vision_model: Any, encoded: list[bytes]) -> None:
    model = vision_model(ONE)
    engine = serve(config("host", "disk", model=model.path, slots=1024))
    ask(engine, model, "Look.")
    assert engine.control("flush_cache")["success"]
    ask(engine, model, "Look.")
    assert len(encoded) == 2 * len(IMAGES)


@pytest.mark.parametrize("store", ["damaging", "confusing", "short", "raising", "slow", "forgetful"])
def test_a_broken_store_costs_hits_only(
    serve: Serve, config: Any, vision_model: Any, broken: Path, encoded: list[bytes], store: str
) -> None:
    model, tiers = vision_model(ONE), {"kv-tiers": {"block_tokens": 16, "load": "always", "load_seconds": 0.2}}
    engine = serve(config(store, model=model.path, files=[broken], settings=tiers, slots=1024))
    expected = ask(engine, model, "Look.")
    assert engine.control("flush_cache", stored=False)["success"]
    assert ask(engine, model, "Look.").tokens == expected.tokens
    assert len(encoded) == 2 * len(IMAGES) or store == "confusing", "one tensor at a time cannot be confused"


def test_requests_of_text_are_not_held(serve: Serve, config: Any, vision_model: Any) -> None:
    model = vision_model(ONE)
    engine = serve(config("host", model=model.path))
    (output,) = engine.outputs([request("text", model.tokens("What is the capital of France?"))])
    assert output.tokens and stored(engine)["host"]["errors"] == 0
