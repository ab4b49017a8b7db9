"""The calls that the published quick start, completions and native API pages show, with the demo model."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import openai

MODEL = "meta-llama/Meta-Llama-3.1-8B-Instruct"
CAPITAL = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
COUNTRIES = [{"role": "user", "content": "List 3 countries and their capitals."}]


def ask(server: Any, **arguments: Any) -> Any:
    with openai.Client(base_url=f"{server.url}/v1", api_key="None") as client:
        return client.chat.completions.create(model=MODEL, **arguments)


def test_curl_without_headers(server: Any) -> None:
    command = f"curl -s {server.url}/v1/chat/completions \\\n  -d '{json.dumps(CAPITAL)}'"
    answer = json.loads(subprocess.check_output(command, shell=True))
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
    (choice,) = answer["choices"]
    assert choice.keys() == {"index", "message", "logprobs", "finish_reason", "matched_stop"}
    assert (choice["message"]["role"], choice["message"]["tool_calls"]) == ("assistant", None)
    assert "Paris" in choice["message"]["content"]
    assert answer["usage"]["prompt_tokens_details"] is None


def test_post_from_python(server: Any) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=CAPITAL, timeout=60)
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert answer.json()["model"] == MODEL


def test_openai_client(server: Any) -> None:
    answer = ask(server, messages=COUNTRIES, temperature=0, max_tokens=64)
    assert "France - Paris" in answer.choices[0].message.content


def test_openai_client_streaming(server: Any) -> None:
    found = ""
    with openai.Client(base_url=f"{server.url}/v1", api_key="None") as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=COUNTRIES,
            temperature=0,
            max_tokens=64,
            stream=True,  # type: ignore[arg-type]
        )
        for chunk in stream:
            if chunk.choices[0].delta.content:
                found += chunk.choices[0].delta.content
    assert "Germany - Berlin" in found


def test_a_detailed_chat_request(server: Any) -> None:
    messages = [
        {"role": "system", "content": "You are a knowledgeable historian who provides concise responses."},
        {"role": "user", "content": "Tell me about ancient Rome"},
        {"role": "assistant", "content": "Ancient Rome was a civilization centered in Italy."},
        {"role": "user", "content": "What were their major achievements?"},
    ]
    options = {"temperature": 0.3, "max_tokens": 128, "top_p": 0.95, "n": 1, "seed": 42}
    penalties = {"presence_penalty": 0.2, "frequency_penalty": 0.2}
    texts = {ask(server, messages=messages, **options, **penalties).choices[0].message.content for _ in range(2)}
    assert len(texts) == 1 and texts.pop()


def test_completions(server: Any) -> None:
    with openai.Client(base_url=f"{server.url}/v1", api_key="None") as client:
        prompt = COUNTRIES[0]["content"]
        plain = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=64, n=1, stop=None)
        story = client.completions.create(
            model=MODEL,
            prompt="Write a short story about a space explorer.",
            temperature=0.7,
            max_tokens=150,
            top_p=0.9,
            stop=["\n\n", "THE END"],
            presence_penalty=0.3,
            frequency_penalty=0.3,
            n=1,
            seed=123,
        )
    assert plain.object == "text_completion" and plain.choices[0].finish_reason in ("stop", "length")
    text = story.choices[0].text
    assert "\n\n" not in text and "THE END" not in text
    assert story.usage is not None and story.usage.completion_tokens <= 150


GENERATE = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 32}}


def test_generate(server: Any) -> None:
    answer = httpx.post(f"{server.url}/generate", json=GENERATE, timeout=60).json()
    assert "Paris" in answer["text"]
    meta = answer["meta_info"]
    assert {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"} <= meta.keys()
    assert meta["finish_reason"] == {"type": "stop", "matched": 2}
    plain = httpx.post(f"{server.url}/generate", json={"text": "What is the capital of France?"}, timeout=60).json()
    assert plain["meta_info"]["completion_tokens"] <= 128


def test_generate_streaming(server: Any) -> None:
    shown, previous, ended = "", 0, False
    with httpx.stream("POST", f"{server.url}/generate", json={**GENERATE, "stream": True}, timeout=60) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data:"):
                continue
            if line == "data: [DONE]":
                ended = True
                break
            output = json.loads(line[5:].strip("\n"))["text"]
            shown += output[previous:]
            previous = len(output)
    assert ended
    assert shown == httpx.post(f"{server.url}/generate", json=GENERATE, timeout=60).json()["text"]


def test_information_health_and_flush(server: Any) -> None:
    info = httpx.get(f"{server.url}/get_model_info").json()
    assert info["is_generation"] is True
    assert info["model_path"] == info["tokenizer_path"]
    args = httpx.get(f"{server.url}/get_server_info").json()
    assert {"model_path", "tokenizer_path", "tokenizer_mode", "load_format", "dtype", "max_total_num_tokens"} <= set(
        args
    )
    assert httpx.get(f"{server.url}/health_generate", timeout=60).text == ""
    assert httpx.get(f"{server.url}/health").text == ""
    assert httpx.post(f"{server.url}/flush_cache").text.startswith("Cache flushed.\nPlease check backend logs")


def test_without_a_tokenizer(token_server: Any) -> None:
    body = {
        "input_ids": [321, 310, 304, 995, 300],
        "sampling_params": {"temperature": 0, "max_new_tokens": 256, "stop_token_ids": [2]},
        "stream": False,
    }
    answer = httpx.post(f"{token_server.url}/generate", json=body, timeout=60).json()
    assert answer["token_ids"][0] == 844
    assert answer["meta_info"]["finish_reason"]["type"] in ("stop", "length")


def test_launch_module_lists_the_options_that_documents_use() -> None:
    text = subprocess.check_output([sys.executable, "-m", "sglang_plug.launch_server", "--help"], text=True)
    for flag in ("--model-path", "--host", "--port", "--chat-template", "--skip-tokenizer-init"):
        assert flag in text
