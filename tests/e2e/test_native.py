"""Tests of the native routes on a real server: ``/generate``, health, information, cache."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

FRANCE = "The capital of France is"
SPAIN = "The capital of Spain is"
FRANCE_IDS = [321, 310, 304, 995, 300]
PARIS, DOT = 844, 29
END = 4
SHORT = {"temperature": 0, "max_new_tokens": 8}


def generate(server: Any, **body: Any) -> Any:
    body.setdefault("sampling_params", SHORT)
    return server.generate(body)


def test_text(server: Any) -> None:
    answer = generate(server, text=FRANCE)
    assert answer.keys() == {"text", "output_ids", "meta_info"}
    assert answer["text"].startswith(" Paris.")
    assert answer["output_ids"][:2] == [PARIS, DOT]
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 8)
    assert (meta["weight_version"], meta["num_retractions"]) == ("default", 0)
    assert len(meta["id"]) == 32 and meta["e2e_latency"] > 0


def test_the_default_is_128_tokens(server: Any) -> None:
    answer = generate(server, text=FRANCE, sampling_params={"ignore_eos": True})
    assert answer["meta_info"]["completion_tokens"] == 128


def test_ids_give_the_same_as_their_text(server: Any) -> None:
    expected = generate(server, text=FRANCE)
    answer = generate(server, input_ids=FRANCE_IDS)
    assert (answer["text"], answer["output_ids"]) == (expected["text"], expected["output_ids"])


def test_the_end_token_is_in_output_ids_and_not_in_the_text(server: Any) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = generate(server, text=prompt, sampling_params={"temperature": 0})
    assert answer["text"] == "The capital of France is Paris."
    assert answer["output_ids"][-1] == END
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": END}
    untrimmed = generate(server, text=prompt, sampling_params={"temperature": 0, "no_stop_trim": True})
    assert untrimmed["text"] == "The capital of France is Paris."  # special tokens are skipped
    params = {"temperature": 0, "no_stop_trim": True, "skip_special_tokens": False}
    assert generate(server, text=prompt, sampling_params=params)["text"].endswith("Paris.<|im_end|>")


def test_stop_strings_and_tokens(server: Any) -> None:
    answer = generate(server, text=FRANCE, sampling_params={**SHORT, "stop": ["."]})
    assert (answer["text"], answer["output_ids"]) == (" Paris", [PARIS, DOT])
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "."}
    answer = generate(server, text=FRANCE, sampling_params={**SHORT, "stop_token_ids": [DOT]})
    assert (answer["text"], answer["output_ids"]) == (" Paris", [PARIS, DOT])
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": DOT}


def test_batch(server: Any) -> None:
    alone = [generate(server, text=text)["text"] for text in (FRANCE, SPAIN)]
    answers = generate(server, text=[FRANCE, SPAIN])
    assert [answer["text"] for answer in answers] == alone
    assert len({answer["meta_info"]["id"] for answer in answers}) == 2
    assert [answer["text"] for answer in generate(server, text=[FRANCE])] == alone[:1]
    ids = generate(server, input_ids=[FRANCE_IDS, FRANCE_IDS[:1]])
    assert ids[0]["text"] == alone[0]


def test_batch_with_parameters_of_its_own_for_each(server: Any) -> None:
    params = [{"temperature": 0, "max_new_tokens": count} for count in (1, 3)]
    answers = generate(server, text=[FRANCE, SPAIN], sampling_params=params, return_logprob=[False, True])
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [1, 3]
    assert ["output_token_logprobs" in answer["meta_info"] for answer in answers] == [False, True]
    refused = server.post("/generate", {"text": [FRANCE], "sampling_params": params})
    assert (refused.status_code, "2 entries for 1 prompts" in refused.json()["message"]) == (400, True)


def test_several_outputs(server: Any) -> None:
    params = {"n": 3, "temperature": 1.5, "max_new_tokens": 12, "seed": 1}
    answers = generate(server, text=FRANCE, sampling_params=params)
    assert len(answers) == 3
    assert len({answer["text"] for answer in answers}) > 1
    assert [answer["text"] for answer in generate(server, text=FRANCE, sampling_params=params)] == [
        answer["text"] for answer in answers
    ]
    assert len(generate(server, text=[FRANCE, SPAIN], sampling_params=params)) == 6


def test_stream_is_cumulative(server: Any) -> None:
    whole = generate(server, text=FRANCE)
    events = server.events("/generate", {"text": FRANCE, "sampling_params": SHORT})
    texts = [event["text"] for event in events]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert (texts[-1], events[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert len(events) > 3
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 8}


def test_stream_may_be_incremental(server: Any) -> None:
    whole = generate(server, text=FRANCE)
    events = server.events("/generate", {"text": FRANCE, "sampling_params": SHORT, "incremental": True})
    assert "".join(event["text"] for event in events) == whole["text"]
    assert [token for event in events for token in event["output_ids"]] == whole["output_ids"]


def test_stream_of_a_batch_has_indices(server: Any) -> None:
    whole = generate(server, text=[FRANCE, SPAIN])
    last: dict[int, Any] = {}
    for event in server.events("/generate", {"text": [FRANCE, SPAIN], "sampling_params": SHORT}):
        last[event["index"]] = event
    assert [last[index]["text"] for index in (0, 1)] == [answer["text"] for answer in whole]


def test_logprobs_of_the_output(server: Any) -> None:
    meta = generate(server, text=FRANCE, return_logprob=True)["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert len(meta["output_token_logprobs"]) == 8
    value, token, text = meta["output_token_logprobs"][0]
    assert (token, text) == (PARIS, None)
    assert -1 < value <= 0
    assert "output_top_logprobs" not in meta and "output_token_ids_logprobs" not in meta


def test_logprobs_with_everything(server: Any) -> None:
    options = {"logprob_start_len": 1, "top_logprobs_num": 3, "token_ids_logprob": [DOT, PARIS]}
    answer = generate(server, text=FRANCE, return_logprob=True, return_text_in_logprobs=True, **options)
    meta = answer["meta_info"]
    assert [(token, text) for _, token, text in meta["input_token_logprobs"]] == [
        (310, " capital"), (304, " of"), (995, " France"), (300, " is"),
    ]  # fmt: skip
    assert "".join(text for _, _, text in meta["output_token_logprobs"]) == answer["text"]
    assert len(meta["input_top_logprobs"]) == 4 and len(meta["output_top_logprobs"]) == 8
    for (value, token, _), top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert [token, value] == [top[0][1], top[0][0]]
        assert sum(math.exp(other) for other, _, _ in top) <= 1 + 1e-5
    for triples in meta["output_token_ids_logprobs"]:
        assert [(token, text) for _, token, text in triples] == [(DOT, "."), (PARIS, " Paris")]
    assert meta["output_token_ids_logprobs"][0][1][0] == pytest.approx(meta["output_token_logprobs"][0][0], abs=1e-5)


def test_logprobs_from_the_first_token(server: Any) -> None:
    meta = generate(server, input_ids=FRANCE_IDS, return_logprob=True, logprob_start_len=0)["meta_info"]
    assert meta["input_token_logprobs"][0] == [None, FRANCE_IDS[0], None]
    again = generate(server, input_ids=FRANCE_IDS, return_logprob=True, logprob_start_len=0)["meta_info"]
    values = [triple[0] for triple in meta["input_token_logprobs"][1:]]
    assert [triple[0] for triple in again["input_token_logprobs"][1:]] == pytest.approx(values, abs=1e-4)


def test_logprobs_accumulate_in_a_stream(server: Any) -> None:
    body = {"text": FRANCE, "sampling_params": SHORT, "return_logprob": True, "logprob_start_len": 0}
    whole = server.generate(body)["meta_info"]
    last = server.events("/generate", body)[-1]["meta_info"]
    for key in ("input_token_logprobs", "output_token_logprobs"):
        assert [token for _, token, _ in last[key]] == [token for _, token, _ in whole[key]]


def test_request_ids(server: Any) -> None:
    assert generate(server, text=FRANCE, rid="mine")["meta_info"]["id"] == "mine"
    answers = generate(server, text=[FRANCE, SPAIN], rid=["a", "b"])
    assert [answer["meta_info"]["id"] for answer in answers] == ["a", "b"]
    answers = generate(server, text=[FRANCE, SPAIN], rid="batch")
    assert [answer["meta_info"]["id"] for answer in answers] == ["batch-0", "batch-1"]


def test_an_id_in_use_is_refused_and_its_owner_not_disturbed(server: Any) -> None:
    body = {"text": FRANCE, "rid": "taken", "sampling_params": {"max_new_tokens": 600, "ignore_eos": True}}
    first: list[Any] = []
    with server.client.stream("POST", "/generate", json={**body, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        refused = server.post("/generate", {**body, "sampling_params": SHORT})
        assert refused.status_code == 400
        assert "Duplicate request ID" in refused.json()["error"]["message"]
        first = [line for line in lines if line]
    assert first[-1] == "data: [DONE]"
    assert json.loads(first[-2][6:])["meta_info"]["completion_tokens"] == 600
    twice = server.post("/generate", {"text": [FRANCE, SPAIN], "rid": ["same", "same"], "sampling_params": SHORT})
    assert (twice.status_code, "Duplicate request ID" in twice.json()["message"]) == (400, True)
    server.wait_whole()


def test_cached_tokens_and_salt(server: Any) -> None:
    prompt = "<|im_start|>user\nTell me about the Eiffel Tower, the Louvre and Notre-Dame, please.<|im_end|>\n"
    generate(server, text=prompt)
    assert generate(server, text=prompt)["meta_info"]["cached_tokens"] > 10
    for name in ("cache_salt", "extra_key"):
        assert generate(server, text=prompt, **{name: f"tenant-{name}"})["meta_info"]["cached_tokens"] == 0
        assert generate(server, text=prompt, **{name: f"tenant-{name}"})["meta_info"]["cached_tokens"] > 10


def test_health(server: Any) -> None:
    for path in ("/health", "/ping", "/health_generate"):
        answer = server.get(path)
        assert (answer.status_code, answer.content) == (200, b""), path


BASIC = {
    "model_path", "tokenizer_path", "is_generation", "preferred_sampling_params", "weight_version",
    "has_image_understanding", "has_audio_understanding", "model_type", "architectures",
}  # fmt: skip


def test_model_info(server: Any) -> None:
    old, new = server.get("/get_model_info").json(), server.get("/model_info").json()
    assert old.keys() == BASIC
    assert old["is_generation"] is True
    assert old["architectures"] == ["LlamaForCausalLM"]
    assert old["model_path"].endswith("sglang-plug-demo")
    assert old.items() <= new.items()
    assert (new["context_length"], new["vocab_size"], new["tasks"]) == (4096, 4096, ["generate"])


def test_server_info(server: Any) -> None:
    info = server.info()
    assert (info["max_total_num_tokens"], info["max_running_requests"]) == (32768, 128)
    assert (info["served_model_name"], info["port"]) == ("sglang-plug-demo", 0)
    assert info["components"]["attention"]["name"] == "torch"
    assert info["components"]["model"]["reason"]
    assert info["slots"]["capacity"] == 32768
    assert server.get("/get_server_info").json().keys() == info.keys()


def test_plugins_equal_the_command_line(server: Any) -> None:
    command = [sys.executable, "-m", "sglang_plug", "plugins", "list", "--json"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=240).stdout)
    assert server.get("/plugins").json() == listed
    assert server.info()["plugins"] == listed
    assert ("route", "generate") in {(component["kind"], component["name"]) for component in listed["components"]}


FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


def test_flush_cache(server: Any) -> None:
    generate(server, text=FRANCE)
    assert server.info()["slots"]["cached"] > 0
    for call in (server.post, server.get):
        answer = call("/flush_cache")
        assert (answer.status_code, answer.text) == (200, FLUSHED)
        assert answer.headers["content-type"].startswith("text/plain")
    assert server.info()["slots"] == {"free": 32768, "cached": 0, "running": 0, "capacity": 32768}
    long = {"text": FRANCE, "stream": True, "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}
    with server.client.stream("POST", "/generate", json=long) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert server.post("/flush_cache").status_code == 400
        lines.close()
    server.wait_whole()


def test_openapi_names_every_route(server: Any) -> None:
    document = server.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/generate", "/health", "/metrics"} <= document["paths"].keys()
    assert {"ChatBody", "CompletionBody", "GenerateBody"} <= document["components"]["schemas"].keys()
    assert "playground/docs.js" in server.get("/docs").text


def test_without_a_tokenizer(token_server: Any, server: Any) -> None:
    params = {"temperature": 0, "max_new_tokens": 12, "stop_token_ids": [DOT]}
    answer = token_server.generate({"input_ids": FRANCE_IDS, "sampling_params": params, "stream": False})
    assert answer.keys() == {"output_ids", "token_ids", "meta_info"}
    assert answer["output_ids"] == answer["token_ids"] == [PARIS, DOT]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": DOT}
    expected = generate(server, input_ids=FRANCE_IDS)["output_ids"]
    events = token_server.events("/generate", {"input_ids": FRANCE_IDS, "sampling_params": SHORT})
    assert events[-1]["output_ids"] == expected
    for body in ({"text": FRANCE}, {"input_ids": FRANCE_IDS, "sampling_params": {"stop": "x"}}):
        refused = token_server.post("/generate", body)
        assert (refused.status_code, "--skip-tokenizer-init" in refused.json()["message"]) == (400, True)
    chat = token_server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    assert (chat.status_code, "--skip-tokenizer-init" in chat.json()["message"]) == (400, True)
    ids = token_server.post("/v1/completions", {"prompt": FRANCE_IDS, "temperature": 0, "max_tokens": 2, "echo": True})
    assert (ids.status_code, "--skip-tokenizer-init" in ids.json()["message"]) == (400, True)
    assert token_server.get("/health_generate").status_code == 200
    token_server.wait_whole()
