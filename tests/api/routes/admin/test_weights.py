"""Tests of ``/update_weights_from_disk``, which replaces the weights without losing a request."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import sglang_plug_models.demo
from tests.api.routes.streaming import Streaming

DEMO = Path(sglang_plug_models.demo.__file__).parent / "sglang-plug-demo"
ROUTE = "/update_weights_from_disk"
DONE = {"success": True, "message": "Succeeded to update model weights."}
MAX_NEW_TOKENS = 8
PROMPT = {
    "text": "The capital of France is",
    "sampling_params": {"temperature": 0.0, "max_new_tokens": MAX_NEW_TOKENS},
}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo model with other weights."""
    folder = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(DEMO, folder)
    torch.manual_seed(0)
    weights = load_file(DEMO / "model.safetensors")
    save_file({name: torch.randn_like(tensor) * 0.1 for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture
def restored(app: Any) -> Iterator[Any]:
    """The application, whose original weights are restored after the test."""
    yield app
    assert app.answer(ROUTE, {"model_path": str(DEMO)}) == DONE


def test_the_documents_answers(restored: Any, other: Path) -> None:
    before = restored.answer("/generate", PROMPT)["text"]
    assert restored.answer(ROUTE, {"model_path": str(other)}) == DONE
    assert restored.answer("/generate", PROMPT)["text"] != before
    assert restored.get("/get_model_info").json()["model_path"] == str(other)
    response = restored.post(ROUTE, {"model_path": "no/such-model-wrong"})
    assert response.status_code == 400
    assert set(response.json()) == {"success", "message"}
    assert response.json()["success"] is False
    assert response.json()["message"] == ("Failed to get weights iterator: no/such-model-wrong (repository not found).")
    assert restored.answer(ROUTE, {"model_path": str(DEMO), "weight_version": "second"}) == DONE
    after = restored.answer("/generate", PROMPT)
    assert (after["text"], after["meta_info"]["weight_version"]) == (before, "second")


@pytest.mark.parametrize("path", ["/no/such-folder", "/" + "x" * 4000])
def test_a_folder_that_is_not_there_is_refused_before_anything_is_aborted(app: Any, path: str) -> None:
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}, "stream": True}

    async def work() -> tuple[Any, bytes]:
        running = app.begin("/generate", body)
        await running.until("data:")
        update = await app.client.post(ROUTE, json={"model_path": path, "abort_all_requests": True})
        assert not running.task.done()
        return update, await running.end()

    response, running = app.run(work())
    assert (response.status_code, response.json()["success"]) == (400, False)
    assert "repository not found" in response.json()["message"]
    assert b'"type":"length"' in running, "it was not aborted"


def test_by_the_earlier_name(restored: Any, other: Path) -> None:
    assert restored.answer("/update_weights", {"model_path": str(other)}) == DONE
    assert restored.get("/model_info").json()["model_path"] == str(other)


def test_another_shape_is_refused_and_the_old_weights_serve_on(app: Any, other: Path, tmp_path: Path) -> None:
    before = app.answer("/generate", PROMPT)["text"]
    shutil.copytree(other, tmp_path / "wide")
    config = json.loads((other / "config.json").read_text())
    (tmp_path / "wide" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    response = app.post(ROUTE, {"model_path": str(tmp_path / "wide")})
    assert response.status_code == 400
    assert "num_hidden_layers" in response.json()["message"]
    assert app.answer("/generate", PROMPT)["text"] == before


def test_requests_in_flight_end_first_and_new_ones_wait(restored: Any, other: Path) -> None:
    long = {"text": "Once", "sampling_params": {"temperature": 0.0, "max_new_tokens": 300, "ignore_eos": True}}
    alone = restored.answer("/generate", long)["text"]

    async def work() -> list[Any]:
        first = asyncio.ensure_future(restored.client.post("/generate", json=long))
        while not restored.engine.in_flight:
            await asyncio.sleep(0.001)
        update = asyncio.ensure_future(restored.client.post(ROUTE, json={"model_path": str(other)}))
        others = []
        while not update.done():
            is_sent_during_first = not first.done()
            answer = await restored.client.post("/generate", json=PROMPT)
            others.append((answer.json()["text"], is_sent_during_first))
        return [(await first).json(), (await update).json(), others]

    before = restored.answer("/generate", PROMPT)["text"]
    first, update, others = restored.run(work())
    assert first["text"] == alone
    assert update == DONE
    after = restored.answer("/generate", PROMPT)["text"]
    assert after != before and {text for text, _ in others} <= {before, after}
    assert (after, True) in others, "no request has waited for the update"
    assert restored.is_whole()


async def is_overtaken(request: asyncio.Future[Any], running: Streaming) -> bool:
    """Return True if an earlier request gets many more tokens than ``request`` needs, and ``request`` none."""
    tokens = running.received.count(b"data:")
    while not request.done() and running.received.count(b"data:") < tokens + 20 * MAX_NEW_TOKENS:
        await asyncio.sleep(0.001)
    return not request.done()


def test_requests_do_not_wait_for_an_update_whose_client_has_left(app: Any, other: Path) -> None:
    endless = {"text": "Once", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}, "stream": True}

    async def leave() -> str:
        running = app.begin("/generate", endless)
        await running.until("data:")
        update = app.begin(ROUTE, {"model_path": str(other)})
        for _ in range(20):  # the first ones may be sent before the update has begun
            waiting = asyncio.ensure_future(app.client.post("/generate", json=PROMPT))
            if await is_overtaken(waiting, running):
                break
        assert not update.task.done()
        await update.leave()
        assert not waiting.done(), "requests have not waited for the update"
        answer = await waiting
        assert not running.task.done()
        await running.leave()
        return str(answer.json()["text"])

    assert "Paris" in app.run(leave())


def test_requests_in_flight_can_be_ended_instead(restored: Any, other: Path) -> None:
    endless = {"text": "Once", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}

    async def work() -> list[Any]:
        first = asyncio.ensure_future(restored.client.post("/generate", json=endless))
        while not restored.engine.in_flight:
            await asyncio.sleep(0.001)
        update = await restored.client.post(ROUTE, json={"model_path": str(other), "abort_all_requests": True})
        return [(await first).json(), update.json()]

    first, update = restored.run(work())
    assert first["meta_info"]["finish_reason"]["type"] == "abort"
    assert update == DONE


@pytest.mark.parametrize("source", ["0" * 300, "0" * 4000, "/" + "x" * 300, "é" * 200 + "/y"])
def test_names_that_no_folder_can_have(app: Any, source: str, caplog: pytest.LogCaptureFixture) -> None:
    response = app.post(ROUTE, {"model_path": source})
    assert (response.status_code, response.json()["success"]) == (400, False)
    assert response.json()["message"] == f"Failed to get weights iterator: {source} (repository not found)."
    assert "the weights were not updated" in caplog.text and "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "body", [{"model_path": "a\nb"}, {"model_path": "a\0b"}, {"model_path": "a", "revision": "b\r"}]
)
def test_names_that_would_span_lines_of_the_log(app: Any, body: dict[str, str]) -> None:
    response = app.post(ROUTE, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == list(body)[-1]


def test_only_from_the_allowed_folders(apps: Callable[..., Any], other: Path, tmp_path: Path) -> None:
    app = apps(allow_update_from=(str(other.parent),))
    (other.parent / "way-out").symlink_to(DEMO)
    for source in (str(DEMO), str(other / ".." / ".." / "x"), str(other.parent / "way-out"), "org/model"):
        response = app.post(ROUTE, {"model_path": source})
        assert response.status_code == 400, source
        assert "--allow-update-from" in response.json()["message"]
    assert app.answer(ROUTE, {"model_path": str(other)}) == DONE


def test_a_new_name_for_the_weights(app: Any) -> None:
    new = {"new_version": "third"}
    answer = {"success": True, "message": "Weight version updated to third", "new_version": "third"}
    before = app.engine.server.state.weight_version
    assert app.answer("/update_weight_version", new) == answer
    assert app.answer("/generate", PROMPT)["meta_info"]["weight_version"] == "third"
    assert app.get("/model_info").json()["weight_version"] == "third"
    assert app.get("/server_info").json()["weight_version"] == "third"
    for wrong in ({}, {"new_version": ""}, {"new_version": "a\nb"}, {"new_version": 3}):
        assert app.refusal("/update_weight_version", wrong)["param"] == "new_version"
    app.answer("/update_weight_version", {"new_version": before})
