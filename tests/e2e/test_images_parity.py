"""Served vision-language models equal transformers: in chunks, from the cache, after a retraction, in graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import EngineConfig, LogprobOptions, Media, Plugins, Request, RequestError, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ParallelOptions, ScheduleOptions
from sglang_plug_backends.avx512 import library

from .vision_families import FAMILIES
from .vision_models import VisionModel, make_vision_model, png

pytestmark = pytest.mark.whole_engine

NEW_TOKENS = 8
PAD = "<|vision_start|><|image_pad|><|vision_end|>"
WIDE, TALL, SMALL = png(64, 24, 1), png(30, 70, 2), png(16, 16, 3)
CASES: dict[str, tuple[str, list[bytes]]] = {
    "one image": (f"{PAD}What is in the image?", [WIDE]),
    "two images, text around": (f"Compare this {PAD} with that: {PAD} Which is taller?", [WIDE, TALL]),
    "no image": ("What is the capital of France?", []),
    "an image at the end": (f"Describe: {PAD}", [SMALL]),
    "nothing but images": (PAD.replace("<|vision_end|>", ""), [TALL]),
}


RECURRENT = {"qwen3.5", "qwen3.5-moe"}
"""Families with recurrent states, which are cached only for longer prompts and not sharded between ranks."""


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], VisionModel]:
    models: dict[str, VisionModel] = {}

    def make(family: str) -> VisionModel:
        if family not in models:
            models[family] = make_vision_model(family, tmp_path_factory.mktemp(family))
        return models[family]

    return make


def config(path: Path, *, pool: int = 4096, chunk: int = 2048, attention: str = "torch", **model: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", **model),
        cache=CacheOptions(max_total_tokens=pool),
        schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=8),
        backends=BackendOptions(attention=attention),
    )


def request(model: VisionModel, case: str, name: str, new_tokens: int = NEW_TOKENS) -> Request:
    text, images = CASES[case]
    media_prompt = model.prompt(text, images)
    return Request(
        id=f"{name} {case}",
        tokens=tuple(media_prompt.tokens),
        media=media_prompt.media,
        params=SamplingParams(max_new_tokens=new_tokens, temperature=0.0),
        logprobs=LogprobOptions(),
    )


def check(model: VisionModel, engine: Any, name: str, new_tokens: int = NEW_TOKENS) -> list[Any]:
    """Check that the outputs of all cases in one batch equal those of transformers, and return them."""
    requests = [request(model, case, name, new_tokens) for case in CASES]
    outputs = engine.outputs(requests)
    for case, submitted, output in zip(CASES, requests, outputs, strict=True):
        assert len(output.tokens) == new_tokens
        tokens, logprobs = model.predicted(submitted.tokens, CASES[case][1], output.tokens)
        assert list(output.tokens) == tokens, (name, case)
        assert [entry.logprob for entry in output.logprobs] == pytest.approx(logprobs, abs=1e-3), (name, case)
    engine.control("check")
    return list(outputs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [2048, 7])
def test_prompts_cold_and_cached(
    family: str, chunk: int, vision_model: Callable[[str], VisionModel], serve: Callable[..., Any]
) -> None:
    model = vision_model(family)
    engine = serve(config(model.path, chunk=chunk))
    assert engine.info["inputs"] == ["image", "text"]
    check(model, engine, "cold")
    warm = check(model, engine, "warm")
    assert family in RECURRENT or all(output.cached_tokens > 0 for output in warm)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - RECURRENT))
def test_ranks_share_the_decoder(
    family: str, vision_model: Callable[[str], VisionModel], serve: Callable[..., Any]
) -> None:
    """Rank 0 encodes the images and sends the embeddings to the other rank."""
    model = vision_model(family)
    two_ranks = ParallelOptions(tp_size=2, executor="threads")
    engine = serve(replace(config(model.path, chunk=7), parallel=two_ranks))
    check(model, engine, "cold")
    assert all(output.cached_tokens > 0 for output in check(model, engine, "warm"))


@pytest.mark.parametrize("family", FAMILIES)
def test_retracted_prompts_are_seen_again(
    family: str, vision_model: Callable[[str], VisionModel], serve: Callable[..., Any]
) -> None:
    model = vision_model(family)
    lengths = [len(request(model, case, "length").tokens) for case in CASES]
    pool = sum(lengths) + 120
    engine = serve(config(model.path, pool=pool, chunk=64))
    outputs = check(model, engine, "retracted", new_tokens=40)
    assert sum(output.retractions for output in outputs) > 0


def test_recorded_decode_steps_count_positions_as_the_model_does(
    vision_model: Callable[[str], VisionModel], serve: Callable[..., Any]
) -> None:
    """Recorded decode steps in bfloat16, where transformers is too inexact, equal other steps bit by bit."""
    plugins = Plugins.discover()
    if "avx512" not in plugins.names("attention") or library.why_not():
        pytest.skip("no backend here records decode steps")
    model = vision_model("qwen2.5-vl")
    results = []
    for disabled in (False, True):
        options = config(model.path, dtype="bfloat16", attention="avx512")
        options = replace(options, backends=replace(options.backends, disable_cuda_graph=disabled))
        engine = serve(options)
        requests = [request(model, case, f"{disabled}", 24) for case in CASES]
        outputs = [engine.outputs([request])[0] for request in requests]
        results.append([(output.tokens, [entry.logprob for entry in output.logprobs]) for output in outputs])
    assert results[0] == results[1]


@pytest.mark.parametrize("family", sorted(RECURRENT))
def test_states_behind_images_are_reused(
    family: str, vision_model: Callable[[str], VisionModel], serve: Callable[..., Any]
) -> None:
    model, text = vision_model(family), "Which of these is taller than all of the others, and why is it? " * 3
    engine, cached = serve(config(model.path)), []
    for images in ([WIDE, TALL], [WIDE, TALL], [WIDE, png(30, 70, 9)]):
        prompt = model.prompt(f"{PAD}{PAD}{text}", images)
        request = Request(
            id=str(len(cached)),
            tokens=tuple(prompt.tokens),
            media=prompt.media,
            params=SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0),
        )
        (output,) = engine.outputs([request])
        assert list(output.tokens) == model.greedy(prompt.tokens, images, NEW_TOKENS)[0]
        cached.append(output.cached_tokens)
    assert cached[0] == 0 and cached[1] >= 64 and cached[2] < cached[1], cached


def test_an_image_is_told_by_its_content(vision_model: Callable[[str], VisionModel], serve: Callable[..., Any]) -> None:
    """A prompt with another image of the same size shares only the prefix before the image."""
    model = vision_model("qwen2.5-vl")
    engine = serve(config(model.path, chunk=9))
    text = f"Look: {PAD} What is it?"
    for name, image in (("first", png(48, 48, 1)), ("second", png(48, 48, 2)), ("again", png(48, 48, 1))):
        media_prompt = model.prompt(text, [image])
        params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0)
        request = Request(id=name, tokens=tuple(media_prompt.tokens), media=media_prompt.media, params=params)
        (output,) = engine.outputs([request])
        assert list(output.tokens) == model.greedy(media_prompt.tokens, [image], NEW_TOKENS)[0], name
        expected = {"first": 0, "second": media_prompt.media[0].start, "again": len(media_prompt.tokens) - 1}
        assert output.cached_tokens == expected[name]


MANGLED: dict[str, tuple[Callable[[Media], Media], str]] = {
    "tokens beyond the prompt": (lambda media: replace(media, start=media.start + 500), "do not fit a prompt of"),
    "no tokens": (lambda media: replace(media, count=0), "do not fit a prompt of"),
    "other tokens than the grid's": (lambda media: replace(media, count=media.count - 1), "has"),
    "other arrays": (lambda media: replace(media, arrays={}), "no arrays"),
}


@pytest.mark.parametrize("case", MANGLED)
def test_media_that_no_processor_made_are_refused(
    case: str, vision_model: Callable[[str], VisionModel], serve: Callable[..., Any]
) -> None:
    model = vision_model("qwen2.5-vl")
    engine = serve(config(model.path))
    change, words = MANGLED[case]
    submitted = request(model, "one image", case)
    with pytest.raises(RequestError, match=words):
        engine.outputs([replace(submitted, media=tuple(map(change, submitted.media)))])
    engine.control("check")


def test_a_model_of_text_refuses_media(
    vision_model: Callable[[str], VisionModel], serve: Callable[..., Any], tiny_model: Callable[..., Any]
) -> None:
    engine = serve(config(tiny_model("qwen2.5-0.5b").path))
    with pytest.raises(RequestError, match="takes text only"):
        engine.outputs([Request(id="media", tokens=(1, 2, 3), media=(Media.of(0, 1, {}),))])


def test_the_engine_bounds_what_images_take(
    vision_model: Callable[[str], VisionModel], serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vision_model("qwen2.5-vl")
    submitted = request(model, "one image", "bounded", 1)
    for max_bytes, refused in ((submitted.media[0].size, False), (submitted.media[0].size - 1, True)):
        monkeypatch.setattr("sglang_plug_backends.multimodal.extension.MAX_BYTES", max_bytes)
        engine = serve(config(model.path))
        if not refused:
            engine.outputs([submitted])
            engine.outputs([submitted])
            continue
        with pytest.raises(RequestError, match="Too many images") as caught:
            engine.outputs([submitted])
        assert caught.value.status == 503
