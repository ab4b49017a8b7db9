"""Every field of SGLang's and vLLM's request models has an effect, is refused by name, or changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.protocol.fields_of_others import ALIASES, HARMLESS, ROUTES, SAMPLING

KNOWN_HARMLESS = {name for names in HARMLESS.values() for name in names.split()}
CASES = [(path, name) for path, (_, _, names) in ROUTES.items() for name in dict.fromkeys(names.split())]
POOLING_ROUTES = ("/v1/embeddings", "/v1/classify", "/v1/rerank", "/v1/score")
WRONG = {"an object": "that no field takes"}


@pytest.fixture(scope="module")
def schemas(app: Any) -> dict[str, Any]:
    return dict(app.application.openapi()["components"]["schemas"])


@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{path}-{name}" for path, name in CASES])
def test_a_field_is_known_refused_or_harmless(app: Any, schemas: Any, path: str, name: str) -> None:
    schema, body, _ = ROUTES[path]
    if name in schemas[schema]["properties"] or (schema == "ScoreBody" and ALIASES.get(name, "") in body):
        return
    response = app.post(path, {**body, name: WRONG})
    if name in KNOWN_HARMLESS:
        return
    assert response.status_code == 400, f"{path} ignores {name}"
    assert response.json()["error"]["param"] == name, response.text


@pytest.mark.parametrize("name", SAMPLING.split())
def test_a_sampling_parameter_is_known_or_refused(app: Any, schemas: Any, name: str) -> None:
    if name in schemas["SamplingBody"]["properties"]:
        return
    refusal = app.refusal("/generate", {"text": "Hi", "sampling_params": {name: WRONG}})
    assert refusal["param"] == f"sampling_params.{name}"


@pytest.mark.parametrize(("path", "name"), [case for case in CASES if case[1] in KNOWN_HARMLESS])
def test_what_is_harmless_passes(app: Any, schemas: Any, path: str, name: str) -> None:
    schema, body, _ = ROUTES[path]
    if name in schemas[schema]["properties"] or path in POOLING_ROUTES:
        return  # the demo model gives neither vectors nor scores
    assert app.post(path, {**body, name: "x"}).status_code == 200
