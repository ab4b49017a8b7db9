"""Every field of SGLang's and vLLM's request models has an effect, is refused by name, or changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.protocol.differences import REFUSED_VALUES
from tests.api.protocol.endpoints_of_others import NOT_OFFERED
from tests.api.protocol.fields_of_others import ALIASES, HARMLESS, REQUESTS, RequestModel

KNOWN_HARMLESS = {name for names in HARMLESS.values() for name in names.split()}
PLUGIN = "/v1/messages"
HERE = [request for request in REQUESTS if request.location.startswith("/") and not request.location.startswith(PLUGIN)]
(SAMPLING,) = [request for request in REQUESTS if request.location == "sampling_params"]
CASES = [(request, name) for request in HERE for name in request.names]
GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate", "/tokenize", "/detokenize")
WRONG = {"an object": "that no field takes"}


@pytest.fixture(scope="module")
def schemas(app: Any) -> dict[str, Any]:
    return dict(app.application.openapi()["components"]["schemas"])


def identity(value: Any) -> str | None:
    return value.location if isinstance(value, RequestModel) else None


def is_known(schemas: dict[str, Any], request: RequestModel, name: str) -> bool:
    alias = ALIASES.get(name) if request.schema == "ScoreBody" else None
    return {name, alias} & schemas[request.schema]["properties"].keys() != set()


@pytest.mark.parametrize(("request_model", "name"), CASES, ids=identity)
def test_a_field_is_known_refused_or_harmless(app: Any, schemas: Any, request_model: RequestModel, name: str) -> None:
    if is_known(schemas, request_model, name):
        return
    response = app.post(request_model.location, {**request_model.body, name: WRONG})
    if name in KNOWN_HARMLESS:
        return
    assert response.status_code == 400, f"{request_model.location} ignores {name}"
    assert response.json()["error"]["param"] == name, response.text


@pytest.mark.parametrize("name", SAMPLING.names)
def test_a_sampling_parameter_is_known_or_refused(app: Any, schemas: Any, name: str) -> None:
    if is_known(schemas, SAMPLING, name):
        return
    refusal = app.refusal("/generate", {"text": "Hi", "sampling_params": {name: WRONG}})
    assert refusal["param"] == f"sampling_params.{name}"


@pytest.mark.parametrize("path", GENERATING)
def test_what_is_harmless_passes(app: Any, schemas: Any, path: str) -> None:
    (request,) = [request for request in HERE if request.location == path]
    harmless = [name for name in request.names if name in KNOWN_HARMLESS and not is_known(schemas, request, name)]
    assert app.post(path, {**request.body, **dict.fromkeys(harmless, "x")}).status_code == 200


@pytest.mark.parametrize(("path", "name"), [("/generate", name) for name in REFUSED_VALUES["/generate"]])
def test_a_field_that_is_declared_may_be_refused_whatever_it_says(app: Any, path: str, name: str) -> None:
    value = True if name.startswith("return_") else ["x"]
    assert app.refusal(path, {"text": "Hi", name: value})["param"] == name


def test_a_path_that_is_not_offered_is_404(app: Any) -> None:
    paths = {path for paths in NOT_OFFERED.values() for path in paths.split()}
    like_an_id = "/v1/responses/render"  # a GET of it asks for a response with this id
    assert {app.post(path, {}).status_code for path in paths - {like_an_id}} == {404}
    assert app.post(like_an_id, {}).status_code == 405
