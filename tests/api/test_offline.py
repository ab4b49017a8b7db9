"""The engine in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sglang_plug import ConfigError
from sglang_plug_api import Engine
from sglang_plug_api.errors import ApiError

GREEDY = {"temperature": 0.0, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(max_total_tokens=4096, device="cpu") as engine:
        yield engine


def test_one_prompt_and_a_batch(engine: Engine) -> None:
    one = engine.generate("The capital of France is", GREEDY)
    assert isinstance(one, dict)
    assert "Paris" in one["text"]
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    batch = engine.generate(["The capital of France is", "The capital of Japan is"], GREEDY)
    assert isinstance(batch, list)
    assert batch[0]["text"] == one["text"]
    assert "Tokyo" in batch[1]["text"]


def test_token_ids(engine: Engine) -> None:
    tokens = engine.tokenizer.encode("The capital of France is")
    by_text = engine.generate("The capital of France is", GREEDY)
    by_ids = engine.generate(input_ids=tokens, sampling_params=GREEDY)
    assert isinstance(by_text, dict) and isinstance(by_ids, dict)
    assert by_ids["output_ids"] == by_text["output_ids"]
    assert engine.tokenizer.decode(by_ids["output_ids"]) == by_text["text"]


def test_a_stream_grows_to_the_whole_answer(engine: Engine) -> None:
    whole = engine.generate("Once upon a time", GREEDY)
    texts = [event["text"] for event in engine.generate("Once upon a time", GREEDY, stream=True)]
    assert isinstance(whole, dict)
    assert len(texts) > 1
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert texts[-1] == whole["text"]


def test_a_stream_left_early_frees_its_slots(engine: Engine) -> None:
    events = engine.generate("Once upon a time", {"max_new_tokens": 2000, "ignore_eos": True}, stream=True)
    next(iter(events))
    events.close()  # type: ignore[union-attr]
    info = engine.get_server_info()
    assert (info["running"], info["waiting"]) == (0, 0)
    assert info["slots"]["free"] + info["slots"]["cached"] == info["slots"]["capacity"]


def test_from_an_event_loop(engine: Engine) -> None:
    async def both() -> list[object]:
        calls = [engine.async_generate(f"The capital of {name} is", GREEDY) for name in ("France", "Japan")]
        return list(await asyncio.gather(*calls))

    first, second = asyncio.run(both())
    assert isinstance(first, dict) and isinstance(second, dict)
    assert "Paris" in first["text"] and "Tokyo" in second["text"]


def test_what_the_server_refuses_is_refused(engine: Engine) -> None:
    with pytest.raises(ApiError, match="temperature"):
        engine.generate("x", {"temperature": -1})
    with pytest.raises(ApiError, match="no field 'promt'"):
        engine.generate(promt="x")
    with pytest.raises(ApiError, match="text, input_ids or input_embeds"):
        engine.generate()


def test_flush(engine: Engine) -> None:
    engine.generate("The capital of France is", GREEDY)
    assert engine.flush_cache()
    assert engine.get_server_info()["slots"]["cached"] == 0


def test_unknown_options_and_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="no option 'max_tokens'"):
        Engine(max_tokens=3)
    with pytest.raises(ConfigError, match="nowhere"):
        Engine(model_path="./nowhere/at/all")
