"""Every refusal has the same error format."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from sglang_plug import EngineError, RequestError
from sglang_plug_api.answers.errors import ApiError, from_exception, from_validation, json_bytes, json_response


def test_body_has_the_nested_object_and_the_same_keys_flat() -> None:
    body = ApiError("no", 404, param="model", code="model_not_found").body()
    error = {"message": "no", "type": "NotFoundError", "param": "model", "code": "model_not_found"}
    assert body == {"error": error, "object": "error", **error, "code": 404}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (413, "PayloadTooLargeError"),
        (415, "BadRequestError"),
        (500, "InternalServerError"),
        (502, "InternalServerError"),
        (503, "ServiceUnavailableError"),
    ],
)
def test_types_and_codes(status: int, kind: str) -> None:
    body = ApiError("x", status).body()
    assert (body["type"], body["code"], body["error"]["code"]) == (kind, status, None)


def test_response_has_status_and_headers() -> None:
    response = ApiError("x", 401, headers={"www-authenticate": "Bearer"}).response()
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.headers["content-type"] == "application/json"
    assert json.loads(response.body)["error"]["message"] == "x"


def test_expected_exceptions_keep_their_message_and_others_do_not() -> None:
    own = ApiError("mine", 418)
    assert from_exception(own) is own
    busy = from_exception(RequestError("full", 503))
    assert (busy.status, busy.message, busy.headers) == (503, "full", {"retry-after": "1"})
    assert from_exception(RequestError("wrong")).headers == {}
    dead = from_exception(EngineError("it ended"))
    assert (dead.status, dead.message) == (503, "the engine is not running: it ended")
    hidden = from_exception(RuntimeError("secret path"))
    assert (hidden.status, "secret" in hidden.message) == (500, False)


class Inner(BaseModel):
    count: int | list[int]


class Outer(BaseModel):
    parts: list[Inner]


class Forms(BaseModel):
    choice: Literal["a"] | Inner | None = None
    texts: str | list[str] | None = None
    name: Annotated[str, Field(max_length=3)] | list[str] | None = None


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"choice": {"count": "x"}}, "choice.count", "integer"),
        ({"choice": {}}, "choice.count", "Field required"),
        ({"texts": ["a", "b", 3]}, "texts.2", "Input should be a valid string"),
        ({"name": 3}, "name", "Input should be a valid string or a valid list"),
        ({"texts": 3}, "texts", "Input should be a valid string or a valid list"),
    ],
    ids=str,
)
def test_of_several_forms_the_closest_is_told_or_all(body: object, param: str, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Forms.model_validate(body)
    refusal = from_validation(caught.value)
    assert refusal.param == param and refusal.message.startswith(f"{param}: ") and text in refusal.message


def test_validation_names_the_field_as_the_caller_wrote_it() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"parts": [{"count": 1}, {"count": "x"}]})
    refusal = from_validation(caught.value)
    assert refusal.param == "parts.1.count"
    assert refusal.message.startswith("parts.1.count: ")
    assert (from_exception(caught.value).param, refusal.status) == ("parts.1.count", 400)


def test_validation_of_parameters_that_the_framework_reads() -> None:
    refusal = from_exception(RequestValidationError([{"loc": ("query", "text"), "msg": "Field required"}]))
    assert (refusal.status, refusal.param, refusal.message) == (400, "text", "text: Field required")


def test_long_names_are_cut() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"parts": {"k" * 5000: 1}})
    assert len(from_validation(caught.value).message) < 500


def test_json() -> None:
    assert json_bytes({"a": "ü–日"}) == '{"a":"ü–日"}'.encode()
    assert json_bytes("\ud800") == b'"?"'
    every_line_break = "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\nb"
    assert len(json_bytes(every_line_break).decode().splitlines()) == 1
    assert json.loads(json_bytes(every_line_break)) == every_line_break
    with pytest.raises(ValueError):
        json_bytes(float("nan"))
    response = json_response([1], 202, {"x-a": "b"})
    assert (response.body, response.status_code, response.headers["x-a"]) == (b"[1]", 202, "b")
