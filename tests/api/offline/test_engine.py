"""Tests of the offline engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, PluginOptions, RequestError
from sglang_plug_api import Engine
from sglang_plug_api.answers.errors import ApiError
from tests.api.routes.pooling.conftest import Tiny

pytestmark = pytest.mark.whole_engine

GREEDY = {"temperature": 0.0, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(max_total_tokens=4096, device="cpu") as engine:
        yield engine


def test_one_prompt_and_a_batch(engine: Engine) -> None:
    single = engine.generate("The capital of France is", GREEDY)
    assert isinstance(single, dict)
    assert "Paris" in single["text"]
    assert single["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    batch = engine.generate(["The capital of France is", "The capital of Japan is"], GREEDY)
    assert isinstance(batch, list)
    assert batch[0]["text"] == single["text"]
    assert "Tokyo" in batch[1]["text"]


WAITING = """
import pathlib
import time

from sglang_plug import Grammar, GrammarBackend, GrammarSpec, hookimpl

@hookimpl
def register_grammar_backends():
    yield GrammarSpec(name="waiting", target=f"{__name__}:Waiting")

class Waiting(GrammarBackend):
    def refuses(self, constraint):
        return None

    def compile(self, constraint):
        return constraint.source.encode()

    def load(self, constraint, compiled):
        return lambda: Anything(pathlib.Path(compiled.decode()))

class Anything(Grammar):
    may_end = ended = False

    def __init__(self, file):
        self.file, self.accepted = file, 0

    def fill(self, mask, row):
        mask[row] = -1

    def accept(self, token):
        self.accepted += 1
        while self.accepted == 5 and not self.file.exists():
            time.sleep(0.01)
        return True

    def rollback(self, count):
        self.accepted -= count
"""


def test_a_grammar_that_does_not_answer_ends_its_request_alone(tmp_path: Path) -> None:
    plugin, file = tmp_path / "waiting.py", tmp_path / "go_on"
    plugin.write_text(WAITING)
    params = {"temperature": 0.0, "max_new_tokens": 16, "regex": str(file), "grammar_backend": "waiting"}
    options = PluginOptions(files=(str(plugin),))
    with Engine(max_total_tokens=4096, device="cpu", plugins=options) as engine:
        with pytest.raises((ApiError, RequestError), match="takes its grammar too long"):
            engine.generate("Once", params)
        assert isinstance(engine.generate("Once", GREEDY), dict)
        file.touch()
        assert isinstance(engine.generate("Once", params), dict)


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


def test_a_deadline_is_that_of_its_own_stream(engine: Engine) -> None:
    late = engine.generate("The capital of France is", GREEDY, stream=True, deadline_ms=1)
    plain = engine.generate("The capital of France is", GREEDY, stream=True)
    time.sleep(0.01)
    with pytest.raises((ApiError, RequestError), match="deadline"):
        list(late)
    assert "Paris" in list(plain)[-1]["text"]


def test_from_an_event_loop(engine: Engine) -> None:
    async def both() -> list[object]:
        calls = [engine.async_generate(f"The capital of {name} is", GREEDY) for name in ("France", "Japan")]
        return list(await asyncio.gather(*calls))

    first, second = asyncio.run(both())
    assert isinstance(first, dict) and isinstance(second, dict)
    assert "Paris" in first["text"] and "Tokyo" in second["text"]


def test_a_stream_in_an_event_loop(engine: Engine) -> None:
    async def texts() -> list[str]:
        events = await engine.async_generate("Once upon a time", GREEDY, stream=True)
        assert not isinstance(events, dict | list)
        return [event["text"] async for event in events]

    whole, grown = engine.generate("Once upon a time", GREEDY), asyncio.run(texts())
    assert isinstance(whole, dict)
    assert len(grown) > 1 and grown[-1] == whole["text"]
    assert all(later.startswith(earlier) for earlier, later in zip(grown, grown[1:], strict=False))


def test_a_stream_that_an_event_loop_gives_up_frees_its_slots(engine: Engine) -> None:
    async def some() -> None:
        endless = {"max_new_tokens": 2000, "ignore_eos": True}
        events = await engine.async_generate("Once upon a time", endless, stream=True)
        assert not isinstance(events, dict | list)
        first = await anext(events)
        assert first["meta_info"]["finish_reason"] is None
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await events.aclose()

    asyncio.run(some())
    info = engine.get_server_info()
    assert (info["running"], info["waiting"]) == (0, 0)
    assert info["slots"]["free"] + info["slots"]["cached"] == info["slots"]["capacity"]


def test_vectors() -> None:
    with Engine(max_total_tokens=4096, device="cpu", is_embedding=True) as engine:
        both = engine.encode(["Once upon a time", "The capital of France is"])
        single = asyncio.run(engine.async_encode(input_ids=engine.tokenizer.encode("Once upon a time")))
    assert isinstance(both, list) and isinstance(single, dict)
    assert single["embedding"] == pytest.approx(both[0]["embedding"], abs=1e-5)
    assert sum(value**2 for value in single["embedding"]) == pytest.approx(1.0, abs=1e-4)
    assert both[1]["meta_info"]["prompt_tokens"] == 5 and both[1]["embedding"] != both[0]["embedding"]


def test_pairs_of_query_and_document(tmp_path: Path) -> None:
    model = Tiny("xlm-reranker", tmp_path)
    pairs = [["what is a panda", "the giant bear"], ["what is a panda", "hi"]]
    with Engine(str(tmp_path), device="cpu", is_embedding=True) as engine:
        answers = engine.rerank(pairs)
        assert [answer["embedding"] for answer in answers] == [
            pytest.approx(model.logits(*pair), abs=1e-4) for pair in pairs
        ]
        assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [
            len(model.tokens(*pair)) for pair in pairs
        ]
        for wrong in ([], ["what", "hi"], [["what"]], [["what", "hi", "hi"]], [["what", " "]], [["what", 5]]):
            with pytest.raises(ApiError) as caught:
                engine.rerank(wrong)  # type: ignore[arg-type]
            assert caught.value.param == "prompt"


def test_pairs_need_a_model_that_scores_them() -> None:
    with (
        Engine(max_total_tokens=4096, device="cpu", is_embedding=True) as engine,
        pytest.raises(ApiError, match="does not support the task rerank"),
    ):
        engine.rerank([["what is a panda", "hi"]])


def test_other_weights(engine: Engine, tmp_path: Path) -> None:
    path = str(engine.get_server_info()["checkpoint_path"])
    engine.update_weights_from_disk(path, weight_version="second")
    answer = engine.generate("The capital of France is", GREEDY)
    assert isinstance(answer, dict)
    assert "Paris" in answer["text"] and answer["meta_info"]["weight_version"] == "second"
    with pytest.raises(RequestError, match="repository not found"):
        engine.update_weights_from_disk(str(tmp_path / "wrong"))


@pytest.mark.parametrize("options", [{"replicas": 2}, {"dp_size": 2}, {"deployment": "process"}])
def test_it_is_one_engine_in_this_process(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="one engine in this process"):
        Engine(**options)


def test_what_the_server_refuses_is_refused(engine: Engine) -> None:
    with pytest.raises(ApiError, match="temperature"):
        engine.generate("x", {"temperature": -1})
    with pytest.raises(ApiError, match="no field 'promt'"):
        engine.generate(promt="x")
    with pytest.raises(ApiError, match="text, input_ids or input_embeds"):
        engine.generate()
    with pytest.raises(ApiError, match="does not appear to be an embedding model"):
        engine.encode("x")
    with pytest.raises(ApiError, match="encode has no field 'sampling_params'"):
        engine.encode("x", sampling_params={})


def test_flush(engine: Engine) -> None:
    engine.generate("The capital of France is", GREEDY)
    assert engine.flush_cache()
    assert engine.get_server_info()["slots"]["cached"] == 0


def test_unknown_options_and_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="no option 'max_tokens'"):
        Engine(max_tokens=3)
    with pytest.raises(ConfigError, match="nowhere"):
        Engine(model_path="./nowhere/at/all")


def test_drafts_change_nothing_but_the_steps(engine: Engine) -> None:
    params = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True, "logit_bias": {"50": 100}}
    plain = engine.generate("Hello there", params)
    with Engine(max_total_tokens=4096, device="cpu", speculative_algorithm="NGRAM") as drafting:
        drafted = drafting.generate("Hello there", params)
    assert drafted["output_ids"] == plain["output_ids"]
    assert drafted["meta_info"]["spec_num_correct_drafts"] > 20 and "spec_verify_ct" not in plain["meta_info"]
