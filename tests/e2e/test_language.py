"""The frontend language: the cells of SGLang's document and the page of examples run against a real server."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plug_lang import (
    BackendError,
    OpenAIEndpoint,
    Runtime,
    RuntimeEndpoint,
    assistant,
    flush_cache,
    function,
    gen,
    gen_int,
    get_server_info,
    greedy_token_selection,
    image,
    select,
    set_default_backend,
    system,
    token_length_normalized,
    unconditional_likelihood_normalized,
    user,
)
from sglang_plug_lang.lang.chat_template import get_chat_template

from .replaying import TooLate, in_time, replayed, wait_in_time

PAGE = Path(__file__).parents[2] / "docs" / "frontend-language.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
DEFAULT_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
METHODS = [token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized]


@pytest.fixture
def endpoint(server: Any) -> Iterator[RuntimeEndpoint]:
    """The session's server as the default backend."""
    endpoint = RuntimeEndpoint(server.url)
    set_default_backend(endpoint)
    yield endpoint
    set_default_backend(None)
    endpoint.close()


@function
def text_qa(s: Any, question: str) -> None:
    s += user(question)
    s += assistant(gen("answer", stop="\n"))


def test_multi_turn(endpoint: Any) -> None:
    @function
    def multi_turn_qa(s: Any) -> Any:
        s += system("You are a helpful assistant than can answer questions.")
        s += user("Please give me a list of 3 countries and their capitals.")
        s += assistant(gen("first_answer", max_tokens=512))
        s += user("Please give me another list of 3 countries and their capitals.")
        s += assistant(gen("second_answer", max_tokens=512))
        return s

    state = multi_turn_qa(temperature=0)
    assert state.ret_value is state
    assert "Paris" in state["first_answer"]
    assert state["second_answer"] != state["first_answer"]
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("country, capital", [("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo")])
def test_select(endpoint: Any, method: Any, country: str, capital: str) -> None:
    @function
    def choose(s: Any) -> None:
        s += f"The capital of {country} is" + select("city", [" Rome", " Paris", " Tokyo"], choices_method=method)
        s += "."

    state = choose()
    assert state["city"] == f" {capital}"
    assert state.text() == f"The capital of {country} is {capital}."
    scores = state.get_meta_info("city")["scores"]
    assert len(scores) == 3 and len(set(scores)) > 1


def test_a_prompt_that_ends_within_a_token(endpoint: Any) -> None:
    """The tokens of a choice are scored together with the space before it, which is part of the first token."""
    choose = function(lambda s: s.__iadd__("The capital of France is " + select("city", ["Rome", "Paris"])))
    assert choose()["city"] == "Paris"


@replayed
def test_forks_run_at_the_same_time(endpoint: Any, server: Any) -> None:
    together: list[bool] = []

    @function
    def tip_suggestion(s: Any) -> None:
        s += assistant("Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n")
        forks = s.fork(2)
        for index, fork in enumerate(forks):
            fork += assistant(
                f"Now, expand tip {index + 1} into a paragraph:\n"
                + gen("detailed_tip", max_tokens=250, ignore_eos=True)
            )
        with contextlib.suppress(TooLate):
            together.append(wait_in_time(lambda: server.load()[0] == 2, "two forks run"))
        s += assistant("Tip 1:" + forks[0]["detailed_tip"] + "\n")
        s += assistant("Tip 2:" + forks[1]["detailed_tip"] + "\n")
        s += assistant("To summarize the above two tips, I can say:\n" + gen("summary", max_tokens=64))

    state = tip_suggestion(temperature=0)
    assert state.error() is None
    in_time(together, "two forks run")
    first, second = (state.messages()[index]["content"] for index in (2, 3))
    assert first.startswith("Tip 1:") and second.startswith("Tip 2:") and first[6:] != second[6:]
    assert state["summary"]


NEEDS_GRAMMAR = "needs a grammar backend"


def or_skip(state: Any) -> Any:
    """Return the state if the server can constrain outputs; otherwise check the refusal and skip the test."""
    error = state.error()
    if isinstance(error, BackendError) and NEEDS_GRAMMAR in str(error):
        assert error.status == 400
        with pytest.raises(BackendError, match=NEEDS_GRAMMAR):
            state["answer"]
        pytest.skip(str(error))
    assert error is None
    return state


def test_numbers(endpoint: Any) -> None:
    @function
    def count(s: Any) -> None:
        s += user("What is 2 + 2?")
        s += assistant("It is " + gen_int("answer", max_tokens=8))

    assert isinstance(or_skip(count(temperature=0))["answer"], int)


def test_schemas(endpoint: Any) -> None:
    import json

    schema = {"type": "object", "properties": {"capital": {"type": "string", "maxLength": 12}}, "required": ["capital"]}

    @function
    def describe(s: Any) -> None:
        s += user(FRANCE)
        s += assistant(gen("answer", json_schema=json.dumps(schema), max_tokens=64))

    assert "capital" in json.loads(or_skip(describe(temperature=0))["answer"])


def test_batch(endpoint: Any, capfd: Any) -> None:
    capitals = {"the United Kingdom": "London", "France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid"}
    countries = list(capitals) * 4
    batch = [{"question": f"What is the capital of {country}?"} for country in countries]
    states = text_qa.run_batch(batch, progress_bar=True, temperature=0)
    assert [state["answer"] for state in states] == [
        f"The capital of {country} is {capitals[country]}." for country in countries
    ]
    assert capfd.readouterr().err.endswith("20/20 done\n")


def test_stream(endpoint: Any) -> None:
    state = text_qa.run(question=FRANCE, temperature=0, stream=True)
    pieces = list(state.text_iter())
    prompt = f"{DEFAULT_SYSTEM}<|im_start|>user\n{FRANCE}<|im_end|>\n<|im_start|>assistant\n"
    assert "".join(pieces) == f"{prompt}{PARIS}<|im_end|>\n"
    answer = list(state.text_iter("answer"))
    assert "".join(answer) == PARIS == state["answer"]
    assert len(answer) > 1  # a slow reader gets several tokens in each


async def test_stream_for_coroutines(endpoint: Any) -> None:
    @function
    def long_answer(s: Any) -> None:
        s += user(FRANCE)
        s += assistant(gen("answer", max_tokens=400, ignore_eos=True))

    state = long_answer.run(temperature=0, stream=True)
    pieces = [piece async for piece in state.text_async_iter("answer")]
    assert "".join(pieces) == state["answer"]
    assert len(pieces) > 1  # a slow reader gets several tokens in each


def test_an_image_is_sent_and_the_refusal_is_clear(endpoint: Any) -> None:
    @function
    def image_qa(s: Any, data: bytes, question: str) -> None:
        s += user(image(data) + question)
        s += assistant(gen("answer", max_tokens=256))

    error = image_qa(b"not an image", "What is in the image?").error()
    assert isinstance(error, BackendError) and error.status == 400
    assert "image_data" in str(error)


def test_log_probabilities(endpoint: Any) -> None:
    @function
    def scored(s: Any) -> None:
        s += "The capital of France is" + gen(
            "city", max_tokens=2, return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True
        )

    meta = scored(temperature=0).get_meta_info("city")
    assert [text for _, _, text in meta["output_token_logprobs"]] == [" Paris", "."]
    assert len(meta["output_top_logprobs"][0]) == 2


def test_cache_and_information(endpoint: Any, server: Any) -> None:
    server.wait_whole()
    assert flush_cache() is True
    assert get_server_info()["served_model_name"] == "sglang-plug-demo"


def test_keys(guarded: Any) -> None:
    with pytest.raises(BackendError) as caught:
        RuntimeEndpoint(guarded.url)
    assert caught.value.status == 401
    endpoint = RuntimeEndpoint(guarded.url, api_key="sésame")
    assert text_qa(FRANCE, backend=endpoint, temperature=0)["answer"] == PARIS
    endpoint.close()


@pytest.mark.parametrize("is_chat_model", [True, False])
def test_over_the_openai_api(server: Any, is_chat_model: bool) -> None:
    backend = OpenAIEndpoint(server.url + "/v1", "sglang-plug-demo", is_chat_model=is_chat_model)

    @function
    def program(s: Any) -> None:
        s += user(FRANCE)
        s += assistant("The capital of" + gen("rest", max_tokens=16))

    for stream in (False, True):
        state = program.run(backend=backend, temperature=0, stream=stream)
        assert state["rest"] == " France is Paris."
        assert state.get_meta_info("rest")["prompt_tokens"] > 10
    choose = function(lambda s: s.__iadd__("The capital of France is " + select("city", ["Rome", "Paris"])))
    assert choose(backend=backend)["city"] == "Paris"
    backend.close()


def test_an_engine_in_this_process() -> None:
    from sglang_plug_api import Engine

    with Engine(max_total_tokens=4096) as engine:
        assert text_qa(FRANCE, backend=engine, temperature=0)["answer"] == PARIS
        state = text_qa.run(FRANCE, backend=engine, temperature=0, stream=True)
        assert "".join(state.text_iter("answer")) == PARIS
        choose = function(lambda s: s.__iadd__("The capital of Italy is" + select("city", [" Rome", " Paris"])))
        assert choose(backend=engine)["city"] == " Rome"
        assert isinstance(text_qa("x" * 100_000, backend=engine).error(), BackendError)


def test_a_server_of_its_own() -> None:
    with Runtime(max_total_tokens=4096, deployment="thread", log_level="error", timeout=240) as runtime:
        assert text_qa(FRANCE, backend=runtime, temperature=0)["answer"] == PARIS
        runtime.endpoint.chat_template = get_chat_template("llama-3-instruct")
        assert text_qa(FRANCE, backend=runtime).text().startswith("<|start_header_id|>user")
        process = runtime._process
    assert process.returncode == 0


def test_the_page_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block runs, in order; a ``text`` block is what the block before it prints."""
    monkeypatch.setenv("SGLANG_PLUG_DEPLOYMENT", "thread")  # the page does not depend on processes
    names: dict[str, Any] = {"__name__": "page"}
    printed, examples = "", 0
    try:
        for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if kind == "text":
                assert printed == text
                examples += 1
                continue
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(text, str(PAGE), "exec"), names)
            printed = output.getvalue()
        assert examples >= 8
    finally:
        set_default_backend(None)
        if "server_process" in names:
            names["terminate_process"](names["server_process"])
