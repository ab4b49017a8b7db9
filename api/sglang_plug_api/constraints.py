"""What a request says its output must look like, in the engine's terms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sglang_plug import Constraint

from .errors import SHOWN, ApiError
from .protocol.native import SamplingBody
from .protocol.openai import GenerationBody
from .protocol.sampling import ConstraintFields

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
UNWRITABLE = re.compile("[\0\ud800-\udfff]")
ONLY_ONE = "Only one of json_schema, regex, ebnf, or structural_tag can be set."


def of_generation(body: GenerationBody) -> Constraint | None:
    """The constraint of a chat or a completion: ``response_format``, ``regex`` or ``ebnf``. Raises ``ApiError``."""
    return of_fields(body, body.response_format)


def of_fields(body: ConstraintFields, response_format: dict[str, Any] | None) -> Constraint | None:
    """The constraint of a body whose ``response_format`` may be called otherwise. Raises ``ApiError``."""
    return _only([*_expressions(body), *_response_format(response_format)], body)


def of_sampling(params: SamplingBody) -> Constraint | None:
    """The constraint in ``sampling_params``. Raises ``ApiError``."""
    found = list(_expressions(params))
    if params.json_schema is not None:
        found.append(Constraint("json_schema", _text(params.json_schema)))
    if params.structural_tag is not None:
        found.append(Constraint("structural_tag", _text(params.structural_tag)))
    return _only(found, params)


def by_backend(constraint: Constraint | None, body: ConstraintFields) -> Constraint | None:
    """The constraint, for the grammar backend that the body names."""
    return constraint and replace(constraint, backend=body.grammar_backend or "")


def field_of(constraint: Constraint | None) -> str:
    """Where a chat or a completion says it."""
    kind = "" if constraint is None else constraint.kind
    return kind if kind in ("regex", "ebnf") else "response_format"


def _only(found: list[Constraint], body: ConstraintFields) -> Constraint | None:
    if len(found) > 1:
        raise ApiError(ONLY_ONE, param=found[1].kind)
    for one in found:
        check_writable(one)
    return by_backend(found[0] if found else None, body)


def check_writable(constraint: Constraint) -> None:
    """Raises ``ApiError`` for one with characters that nothing can be written with."""
    if UNWRITABLE.search(constraint.source) is not None:
        raise ApiError(f"{constraint.kind} must not hold NUL or half a surrogate pair", param=constraint.kind)


def _expressions(body: ConstraintFields) -> Iterator[Constraint]:
    if body.regex is not None:
        yield Constraint("regex", body.regex)
    if body.ebnf is not None:
        yield Constraint("ebnf", body.ebnf)


def _response_format(given: dict[str, Any] | None) -> Iterator[Constraint]:
    match given.get("type") if given else "text":
        case "text":
            return
        case "json_object":
            yield Constraint("json_object")
        case "json_schema":
            yield Constraint("json_schema", _schema(given or {}))
        case "structural_tag":
            yield Constraint("structural_tag", _text(given))
        case None:
            raise ApiError(f"response_format needs a type: one of {', '.join(FORMATS)}", param="response_format")
        case kind:
            raise ApiError(
                f"response_format.type {str(kind)[:SHOWN]!r} is unknown; known: {', '.join(FORMATS)}",
                param="response_format",
            )


def _schema(given: dict[str, Any]) -> str:
    """``json_schema.schema``. Its ``strict`` changes nothing: a schema is kept to or refused."""
    named = given.get("json_schema")
    if not isinstance(named, dict):
        raise ApiError("response_format.json_schema must be an object with name and schema", param="response_format")
    schema = named.get("schema", named.get("schema_"))
    if schema is None:
        raise ApiError(
            "schema_ is required for json_schema response format request: set response_format.json_schema.schema",
            param="response_format",
        )
    if not isinstance(schema, dict | bool):
        raise ApiError("response_format.json_schema.schema must be a JSON schema", param="response_format")
    return _text(schema)


def _text(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"))
