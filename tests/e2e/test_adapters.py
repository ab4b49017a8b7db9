"""Adapters on a real server, with OpenAI's client: at start, loaded and unloaded while it serves, and after a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModelForCausalLM

import sglang_plug_models.demo
from tests.peft_adapters import linears, make_lora

from .servers import NO_GRAMMARS, refused_start, until

DEMO = Path(sglang_plug_models.demo.__file__).parent / "sglang-plug-demo"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
NAMES = ("red", "blue", "green")
IN_USE = ("running_lora_adapters", "waiting_lora_adapters")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of adapters for the demo model."""
    root = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
    names = linears(model, r".*layers.*_proj")
    return {name: make_lora(root / name, model, names, seed=seed, size=0.4).path for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def adapted(module_launcher: Any, folders: dict[str, Path]) -> Any:
    """A server with two adapters."""
    flags = ["--lora-paths", f"red={folders['red']}", str(folders["blue"]), "--max-loras-per-batch", "2"]
    return module_launcher(*flags, "--engine-restart", *NO_GRAMMARS)


@pytest.fixture(scope="module")
def client(adapted: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{adapted.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def answer_of(client: openai.OpenAI, model: str, **more: Any) -> str:
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=8, **more)
    return answer.choices[0].message.content or ""


def test_each_model_answers_as_itself(client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    served, *names = listed
    assert names == ["red", "blue"]
    assert {model.parent for name, model in listed.items() if name != served} == {served}  # type: ignore[attr-defined]
    answers = {name: answer_of(client, name) for name in listed}
    assert answers[served].startswith("The capital of France is")
    assert len(set(answers.values())) == 3
    assert answer_of(client, f"{served}:blue") == answers["blue"]
    with pytest.raises(openai.NotFoundError, match="no such adapter is loaded; loaded: 'red', 'blue'"):
        answer_of(client, f"{served}:yellow")


def test_loading_and_unloading_do_not_disturb_a_stream(
    adapted: Any, client: openai.OpenAI, folders: dict[str, Path]
) -> None:
    more: Any = {"messages": QUESTION, "temperature": 0, "max_tokens": 150, "extra_body": {"ignore_eos": True}}
    expected = client.chat.completions.create(model="blue", **more).choices[0].message.content
    stream = client.chat.completions.create(model="blue", stream=True, **more)
    text = ""
    for count, chunk in enumerate(stream):
        text += chunk.choices[0].delta.content or ""
        if count == 2:
            assert adapted.post("/unload_lora_adapter", {"lora_name": "blue"}).status_code == 200
            body = {"lora_name": "green", "lora_path": str(folders["green"])}
            assert adapted.post("/load_lora_adapter", body).json()["success"]
    assert text == expected
    assert [model.id for model in client.models.list()][1:] == ["red", "green"]
    assert answer_of(client, "green") != answer_of(client, "red")
    adapted.post("/unload_lora_adapter", {"lora_name": "green"})
    adapted.post("/load_lora_adapter", {"lora_name": "blue", "lora_path": str(folders["blue"])})
    adapted.wait_whole()


def adapters_in_use(server: Any) -> list[tuple[str, str, str]]:
    """Return the labels that gateways read: the maximum number of adapters, the running ones and the waiting ones."""
    families = text_string_to_metric_families(server.get("/metrics").text)
    labels = [sample.labels for family in families for sample in family.samples if "lora_requests" in sample.name]
    return [tuple(sample[name] for name in ("max_lora", *IN_USE)) for sample in labels]  # type: ignore[misc]


def test_gateways_see_which_adapters_are_in_use(adapted: Any, client: openai.OpenAI) -> None:
    more: Any = {"messages": QUESTION, "temperature": 0, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    answer_of(client, "red")
    until(lambda: adapters_in_use(adapted) == [("2", "", "")], "no request is left")
    streams = [client.chat.completions.create(model=name, stream=True, **more) for name in ("red", "blue", "blue")]
    until(lambda: adapters_in_use(adapted) == [("2", "blue,red", "")], "both are running")
    for stream in streams:
        stream.close()
    until(lambda: adapters_in_use(adapted) == [("2", "", "")], "they are not running any more")


def test_an_engine_that_was_killed_has_them_again(
    adapted: Any, client: openai.OpenAI, folders: dict[str, Path]
) -> None:
    assert adapted.post("/load_lora_adapter", {"lora_name": "green", "lora_path": str(folders["green"])}).is_success
    assert adapted.post("/unload_lora_adapter", {"lora_name": "red"}).is_success
    before = {name: answer_of(client, name) for name in ("blue", "green")}
    first = adapted.engine_pid
    os.kill(first, signal.SIGKILL)
    until(lambda: adapted.get("/health").status_code == 503 or adapted.engine_pids() not in ([], [first]), "it is gone")
    until(lambda: adapted.get("/health").status_code == 200, "it serves again")
    assert {name: answer_of(client, name) for name in before} == before
    assert set(adapted.info()["adapters"]) == {"blue", "green"}


def test_a_folder_that_is_none_stops_the_start(tmp_path: Path) -> None:
    message = refused_start("--deployment", "thread", "--lora-paths", f"red={tmp_path}")
    assert f"--lora-paths red={tmp_path}: adapter 'red' was not loaded" in message
    assert "Traceback" not in message
