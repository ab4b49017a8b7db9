"""Programs for SGLang's frontend language run against the demo server with only the import changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import exp
from typing import Any

import pytest
from pydantic import BaseModel

import sglang_plug_lang as sgl
from sglang_plug_lang.lang.ir import REGEX_FLOAT, REGEX_INT, REGEX_STR
from sglang_plug_lang.srt.constrained.outlines_backend import build_regex_from_object
from sglang_plug_lang.utils import http_request

FRANCE = "What is the capital of France?"


@pytest.fixture(autouse=True)
def endpoint(server: Any) -> Iterator[sgl.RuntimeEndpoint]:
    """The session's server as the default backend."""
    endpoint = sgl.RuntimeEndpoint(server.url)
    sgl.set_default_backend(endpoint)
    yield endpoint
    sgl.set_default_backend(None)
    endpoint.close()


def or_skip(state: Any) -> Any:
    """Return the state, or skip if the server cannot constrain."""
    error = state.error()
    if error is not None and "needs a grammar backend" in str(error):
        pytest.skip(str(error))
    assert error is None
    return state


def test_forks_by_a_function_and_joined_texts() -> None:
    statements = ["Ethan is the father of Liam.", "Noah is the father of Julian."]

    @sgl.function
    def parallel_encoding(s: Any, question: str) -> None:
        s += "USER: Please memorize these statements.\n"
        forks = s.fork(len(statements))
        forks += lambda i: f"Statement {i}: " + statements[i] + "\n"
        forks.join(mode="concate_and_append")
        s += "Question: " + question + "\nASSISTANT:" + sgl.gen("answer", max_tokens=8)

    state = parallel_encoding.run(question="Who is the father of Julian?", temperature=0)
    assert state.error() is None
    assert state.text().startswith(
        "USER: Please memorize these statements.\nStatement 0: Ethan is the father of Liam.\n"
        "Statement 1: Noah is the father of Julian.\nQuestion: Who"
    )


def test_types() -> None:
    @sgl.function
    def typed(s: Any) -> None:
        s += "The number of days in a year is " + sgl.gen("int_res", dtype=int, max_tokens=8) + "\n"
        s += "The value of pi is " + sgl.gen("float_res", dtype=float, max_tokens=8) + "\n"
        s += "Is the sky blue? " + sgl.gen("bool_res", dtype=bool) + "\n"
        s += "DNS is short for " + sgl.gen("str_res", dtype=str, max_tokens=64) + "\n"

    state = or_skip(typed.run(temperature=0))
    assert [type(state[f"{kind.__name__}_res"]) for kind in (int, float, bool, str)] == [int, float, bool, str]


def test_regular_expressions_of_types_in_a_scope() -> None:
    @sgl.function
    def decode_json(s: Any) -> None:
        s += "Describe Paris in JSON.\n"
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": ' + sgl.gen(regex=REGEX_STR, max_tokens=32) + ",\n"
            s += '  "population": ' + sgl.gen(regex=REGEX_INT, stop=[" ", "\n"]) + ",\n"
            s += '  "latitude": ' + sgl.gen(regex=REGEX_FLOAT, stop=[" ", "\n"]) + "\n"
            s += "}"

    described = json.loads(or_skip(decode_json.run(temperature=0))["json_output"])
    assert isinstance(described["name"], str) and isinstance(described["population"], int)


class Wizard(BaseModel):
    age: int
    is_good: bool


async def test_log_probabilities_of_streamed_pieces() -> None:
    """Each piece has the log-probabilities of its own tokens."""

    @sgl.function
    def qa(s: Any) -> None:
        s += sgl.user(FRANCE)
        s += sgl.assistant(sgl.gen("answer", return_logprob=True, max_tokens=8, temperature=0))

    state = qa.run(stream=True)
    counted = 0
    async for piece, facts in state.text_async_iter("answer", return_meta_data=True):
        assert piece
        counted += len(facts["output_token_logprobs"])
        assert counted == facts["completion_tokens"] == facts["output_token_logprobs_length"]
    assert 1 < counted <= len(state.get_meta_info("answer")["output_token_logprobs"])


def test_a_class_as_a_regular_expression() -> None:
    @sgl.function
    def wizard(s: Any) -> None:
        s += "Give me a description about a wizard in the JSON format.\n"
        s += sgl.gen("character", max_tokens=128, temperature=0, regex=build_regex_from_object(Wizard))

    state = or_skip(wizard.run())
    assert re.fullmatch(build_regex_from_object(Wizard), state["character"])
    Wizard.model_validate_json(state["character"])


def test_several_paths_from_the_likeliest_first_tokens() -> None:
    """A program asks for the likeliest first tokens without generating any, and continues after each of them."""
    paths = []

    @sgl.function
    def decoding(s: Any, question: str, top_k: int) -> None:
        s += sgl.user(question)
        s += sgl.assistant_begin()
        step_0 = s.fork(1)[0]
        forks = s.fork(top_k)
        step_0 += sgl.gen(
            "first", max_tokens=0, return_logprob=True, top_logprobs_num=top_k, return_text_in_logprobs=True
        )
        likeliest = step_0.get_meta_info("first")["output_top_logprobs"][0]
        for fork, (logprob, _, text) in zip(forks, likeliest, strict=True):
            fork += text
            fork += sgl.gen(
                "answer",
                temperature=0,
                max_tokens=16,
                return_logprob=True,
                top_logprobs_num=2,
                return_text_in_logprobs=True,
            )
            rows = fork.get_meta_info("answer")["output_top_logprobs"]
            margin = sum(exp(row[0][0]) - exp(row[1][0]) for row in rows) / max(len(rows), 1)
            paths.append((exp(logprob), margin, str(fork)[len("ProgramState(") : -1]))

    assert decoding.run(question=FRANCE, top_k=3).error() is None
    assert [share for share, _, _ in paths] == sorted((share for share, _, _ in paths), reverse=True)
    assert paths[0][2].endswith("<|im_start|>assistant\nThe capital of France is Paris.")
    assert all(0 <= margin <= 1 for _, margin, _ in paths)


def countries(s: Any) -> None:
    s += sgl.user("List 3 countries and their capitals.")
    s += sgl.assistant(
        "Here are 3 countries and their capitals:\n\n1."
        + sgl.gen("first", stop="\n")
        + "\n2."
        + sgl.gen("second", stop="\n")
        + "\n3."
        + sgl.gen("third", stop="\n")
    )


@pytest.mark.parametrize("kind", ["native", "chat", "completions"])
def test_one_request_for_several_generations(server: Any, endpoint: Any, kind: str) -> None:
    backend: Any = endpoint
    if kind != "native":
        backend = sgl.OpenAI("sglang-plug-demo", kind == "chat", base_url=server.url + "/v1", api_key="key")
    results = []
    for program in (sgl.function(countries), sgl.function(num_api_spec_tokens=64)(countries)):
        backend.token_usage.reset()
        state = program.run(backend=backend, temperature=0)
        results.append(([state[name] for name in ("first", "second", "third")], state.text()))
        results.append(backend.token_usage.prompt_tokens)
    assert results[0] == results[2]
    assert results[0][0] == [" France - Paris", " Germany - Berlin", " Italy - Rome"]
    assert results[3] * 2 < results[1]


def test_a_program_is_cached_before_it_runs(server: Any, endpoint: Any) -> None:
    @sgl.function
    def few_shot_qa(s: Any, question: str) -> None:
        s += "The following are questions with answers. Each answer is one word, and says only what was asked.\n"
        s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n", max_tokens=8)

    server.wait_whole()
    sgl.flush_cache()
    prefix = few_shot_qa.cache(endpoint)
    assert prefix.endswith("asked.\nQ: ")
    state = few_shot_qa.run(question="What is the capital of Italy?", temperature=0)
    assert state.get_meta_info("answer")["cached_tokens"] > 8
    assert len(few_shot_qa.trace().nodes) == 5


def test_log_probabilities_of_a_constrained_text(server: Any) -> None:
    fields = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3, "return_text_in_logprobs": True}
    body = {"text": FRANCE, "sampling_params": {"temperature": 0, "max_new_tokens": 4}, **fields}
    meta_info = http_request(server.url + "/generate", json=body).json()["meta_info"]
    assert len(meta_info["input_token_logprobs"]) == len(meta_info["input_top_logprobs"]) == meta_info["prompt_tokens"]
    assert len(meta_info["output_token_logprobs"]) == len(meta_info["output_top_logprobs"])
