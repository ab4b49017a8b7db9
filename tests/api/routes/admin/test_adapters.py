"""Tests of ``/load_lora_adapter``, ``/unload_lora_adapter``, and requests that name adapters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import sglang_plug_models.demo
from sglang_plug_api.offline.engine import Engine
from tests.peft_adapters import linears, make_lora

DEMO = Path(sglang_plug_models.demo.__file__).parent / "sglang-plug-demo"
GREEDY = {"temperature": 0.0, "max_new_tokens": 8}
PROMPT = {"text": "The capital of France is", "sampling_params": GREEDY}
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 8}
LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of two adapters for the demo model."""
    root = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    names = linears(model, r".*layers.*_proj")
    return {
        name: make_lora(root / name, model, names, seed=seed, size=0.4).path
        for seed, name in enumerate(("red", "blue"))
    }


@pytest.fixture(scope="module")
def adapted(apps: Callable[..., Any], folders: dict[str, Path]) -> Any:
    """An application with one adapter since its start."""
    return apps(lora_paths=(f"red={folders['red']}",), max_loaded_loras=2)


@pytest.fixture
def both(adapted: Any, folders: dict[str, Path]) -> Iterator[Any]:
    """The application with the second adapter loaded during a test."""
    adapted.answer(LOAD, {"lora_name": "blue", "lora_path": str(folders["blue"])})
    yield adapted
    if "blue" in adapted.engine.adapters.paths:
        adapted.answer(UNLOAD, {"lora_name": "blue"})


def text(app: Any, **more: Any) -> str:
    output: str = app.answer("/generate", {**PROMPT, **more})["text"]
    return output


def chat(app: Any, **more: Any) -> str:
    content: str = app.answer("/v1/chat/completions", {**CHAT, **more})["choices"][0]["message"]["content"]
    return content


def test_prompts_of_one_call_have_their_own(both: Any) -> None:
    alone = [text(both, lora_path=name) for name in (None, "red", "blue")]
    assert len(set(alone)) == 3
    batch = {**PROMPT, "text": [PROMPT["text"]] * 4, "lora_path": ["blue", None, "red", "blue"]}
    assert [answer["text"] for answer in both.answer("/generate", batch)] == [alone[2], alone[0], alone[1], alone[2]]
    every = {**PROMPT, "text": [PROMPT["text"]] * 2, "lora_path": "red"}
    assert [answer["text"] for answer in both.answer("/generate", every)] == [alone[1]] * 2


def test_the_model_names_one(both: Any) -> None:
    served = both.engine.model_name
    plain, red, blue = chat(both), chat(both, model="red"), chat(both, lora_path="blue")
    assert len({plain, red, blue}) == 3
    assert chat(both, model=f"{served}:red") == chat(both, model="gpt-4:red") == red
    assert chat(both, model=served) == chat(both, model="any name") == chat(both, model="llama:8b") == plain
    answer = both.answer("/v1/completions", {"prompt": "The", "model": "blue", "temperature": 0, "max_tokens": 4})
    assert answer["model"] == "blue"
    responses = both.answer("/v1/responses", {"input": "Hi", "model": "red", "temperature": 0, "max_output_tokens": 4})
    assert responses["model"] == "red"


def test_models_are_listed(both: Any, folders: dict[str, Path]) -> None:
    served = both.engine.model_name
    cards = {card["id"]: card for card in both.get("/v1/models").json()["data"]}
    assert list(cards) == [served, "red", "blue"]
    assert (cards["blue"]["parent"], cards["blue"]["root"]) == (served, str(folders["blue"]))
    assert both.get("/v1/models/red").json() == cards["red"]
    assert "'red', 'blue'" in both.get("/v1/models/green").json()["error"]["message"]
    assert both.get("/server_info").json()["adapters"] == {name: str(path) for name, path in folders.items()}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/generate", {**PROMPT, "lora_path": "green"}, 400, "no adapter 'green' is loaded; loaded: 'red'"),
        ("/generate", {**PROMPT, "text": ["a", "b"], "lora_path": ["red"]}, 400, "1 entries for 2 prompts"),
        ("/v1/chat/completions", {**CHAT, "model": "sglang-plug-demo:green"}, 404, "loaded: 'red'"),
        ("/v1/chat/completions", {**CHAT, "model": "red", "lora_path": "green"}, 400, "names the adapter 'red'"),
        ("/v1/responses", {"input": "Hi", "model": "sglang-plug-demo:green"}, 404, "loaded: 'red'"),
    ],
)
def test_what_is_not_loaded_is_refused(adapted: Any, path: str, body: Any, status: int, message: str) -> None:
    assert message in adapted.refusal(path, body, status)["message"]


def test_loading_and_unloading_tell_what_is_loaded(adapted: Any, folders: dict[str, Path]) -> None:
    loaded = {name: str(path) for name, path in folders.items()}
    done = {"success": True, "error_message": ""}
    blue = {"lora_name": "blue", "lora_path": str(folders["blue"]), "pinned": True}
    assert adapted.answer(f"/v1{LOAD}", blue) == {**done, "loaded_adapters": loaded}
    assert adapted.answer(f"/v1{UNLOAD}", {"lora_name": "blue"}) == {**done, "loaded_adapters": {"red": loaded["red"]}}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (LOAD, {"lora_name": "red", "lora_path": "DEMO"}, "an adapter of that name is loaded"),
        (LOAD, {"lora_name": "green", "lora_path": "/no/such/folder"}, "is not a folder"),
        (LOAD, {"lora_name": "green", "lora_path": "DEMO"}, "holds no adapter of a known format (lora)"),
        (LOAD, {"lora_name": "a:b", "lora_path": "DEMO"}, "and no colon"),
        (LOAD, {"lora_name": "sglang-plug-demo", "lora_path": "DEMO"}, "is the name of the served model"),
        (UNLOAD, {"lora_name": "green"}, "no adapter 'green' is loaded; loaded: 'red'"),
    ],
)
def test_a_refusal_leaves_them_as_they_are(adapted: Any, path: str, body: dict[str, str], message: str) -> None:
    body = {name: str(DEMO) if value == "DEMO" else value for name, value in body.items()}
    response = adapted.post(path, body)
    assert response.status_code == 400
    answer = response.json()
    assert answer["success"] is False and message in answer["error_message"]
    assert list(answer["loaded_adapters"]) == ["red"]


def test_the_number_of_adapters_is_limited(both: Any, folders: dict[str, Path]) -> None:
    answer = both.post(LOAD, {"lora_name": "third", "lora_path": str(folders["red"])}).json()
    assert "2 adapters are loaded, the maximum (--max-loaded-loras)" in answer["error_message"]


def test_a_request_in_flight_keeps_what_is_unloaded(both: Any, folders: dict[str, Path]) -> None:
    body = {**PROMPT, "lora_path": "blue", "stream": True, "sampling_params": {**GREEDY, "max_new_tokens": 200}}
    body["sampling_params"]["ignore_eos"] = True
    expected = both.answer("/generate", {**body, "stream": False})["text"]

    async def streamed() -> bytes:
        stream = both.begin("/generate", body)
        await stream.until("data: ")
        for path, control in (
            (UNLOAD, {"lora_name": "blue"}),
            (LOAD, {"lora_name": "blue", "lora_path": str(folders["red"])}),
        ):
            assert (await both.client.post(path, json=control)).status_code == 200
        assert not stream.task.done()
        received: bytes = await stream.end()
        return received

    events = both.run(streamed()).decode().split("\n\n")
    assert json.loads(events[-3].removeprefix("data: "))["text"] == expected
    assert text(both, lora_path="blue") == text(both, lora_path="red") != expected[: len(text(both, lora_path="red"))]


def test_prefixes_are_not_shared_with_others(both: Any, folders: dict[str, Path]) -> None:
    long = {"text": "Once upon a time there was a server. " * 8, "sampling_params": {**GREEDY, "max_new_tokens": 1}}

    def cached(adapter: str | None) -> int:
        cached_tokens: int = both.answer("/generate", {**long, "lora_path": adapter})["meta_info"]["cached_tokens"]
        return cached_tokens

    assert [cached(adapter) for adapter in (None, "red", "blue")] == [0, 0, 0]
    assert all(cached(adapter) > 40 for adapter in (None, "red", "blue"))
    both.answer(UNLOAD, {"lora_name": "blue"})
    both.answer(LOAD, {"lora_name": "blue", "lora_path": str(folders["blue"])})
    assert cached("blue") > 40 and cached("red") > 40, "the same matrices have the same prefixes"


def test_new_weights_keep_the_adapters(both: Any) -> None:
    before = text(both, lora_path="red")
    both.answer("/update_weights_from_disk", {"model_path": str(DEMO)})
    assert text(both, lora_path="red") == before != text(both)


def test_without_adapters_nothing_is_taken(app: Any, folders: dict[str, Path]) -> None:
    assert "--enable-lora" in app.refusal("/generate", {**PROMPT, "lora_path": "red"})["message"]
    answer = app.post(LOAD, {"lora_name": "red", "lora_path": str(folders["red"])})
    assert (answer.status_code, "--enable-lora" in answer.json()["error_message"]) == (400, True)
    unloaded = app.post(UNLOAD, {"lora_name": "red"})
    assert (unloaded.status_code, unloaded.json()) == (400, answer.json())
    assert chat(app, model="sglang-plug-demo:red") == chat(app)


def test_strict_names_are_the_models_and_the_adapters(apps: Callable[..., Any], folders: dict[str, Path]) -> None:
    app = apps(lora_paths=(str(folders["red"]),), strict_model_name=True)
    red = chat(app, model="red")
    assert chat(app, model="sglang-plug-demo:red") == red
    for name in ("blue", "sglang-plug-demo:blue", "any name"):
        assert "'red'" in app.refusal("/v1/chat/completions", {**CHAT, "model": name}, 404)["message"]


def test_only_folders_that_are_allowed(apps: Callable[..., Any], folders: dict[str, Path]) -> None:
    app = apps(enable_lora=True, allow_update_from=(str(folders["red"]),))
    answers = [app.post(LOAD, {"lora_name": name, "lora_path": str(path)}) for name, path in folders.items()]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert "--allow-update-from" in answers[1].json()["error_message"]


def test_vectors(apps: Callable[..., Any], folders: dict[str, Path]) -> None:
    app = apps(lora_paths=(f"red={folders['red']}",), is_embedding=True)

    def vector(**more: Any) -> list[float]:
        embedding: list[float] = app.answer("/v1/embeddings", {"input": "Paris", **more})["data"][0]["embedding"]
        return embedding

    def native(**more: Any) -> list[float]:
        embedding: list[float] = app.answer("/encode", {"text": "Paris", **more})["embedding"]
        return embedding

    assert vector(model="red") == vector(model="sglang-plug-demo:red") == native(lora_path="red") == native(model="red")
    assert vector(model="red") != vector() == native()
    same = {"text_1": "Paris", "text_2": "London"}
    scores = [app.answer("/v1/score", {**same, **more})["data"][0]["score"] for more in ({}, {"model": "red"})]
    assert scores[0] != scores[1]


def test_offline(folders: dict[str, Path]) -> None:
    with Engine(enable_lora=True, device="cpu", max_total_tokens=2048) as engine:
        plain: Any = engine.generate(PROMPT["text"], GREEDY)
        engine.load_lora_adapter("red", str(folders["red"]))
        red: Any = engine.generate(PROMPT["text"], GREEDY, lora_path="red")
        assert red["text"] != plain["text"]
        engine.unload_lora_adapter("red")
        with pytest.raises(Exception, match="no adapter 'red' is loaded; loaded: none"):
            engine.generate(PROMPT["text"], GREEDY, lora_path="red")
        assert asyncio.run(engine.async_generate(PROMPT["text"], GREEDY))["text"] == plain["text"]  # type: ignore[call-overload, index]
