"""Constraints on the output: from the fields of a request to the engine's ``Constraint``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sglang_plug import Constraint
from sglang_plug_api.answers.errors import SHOWN, ApiError
from sglang_plug_api.protocol.native import SamplingBody
from sglang_plug_api.protocol.openai import GenerationBody
from sglang_plug_api.protocol.sampling import ConstraintFields, StructuredOutputs

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
UNWRITABLE = re.compile("[\0\ud800-\udfff]")
ONLY_ONE = "Only one of json_schema, regex, ebnf, or structural_tag can be set."


@dataclass(frozen=True, slots=True)
class FormatFields:
    """Names of the fields that describe the format of the output, for errors."""

    format: str = "response_format"
    named: str = "response_format.json_schema"
    """The object with ``schema`` in it."""


CHAT_FIELDS = FormatFields()


def generation_constraint(body: GenerationBody) -> tuple[Constraint | None, str]:
    """Return the constraint of a chat or completion, and the field that sets it. Raises ``ApiError``."""
    return constraint_from_fields(body, body.response_format, structured=body.structured_outputs)


def constraint_from_fields(
    body: ConstraintFields,
    response_format: dict[str, Any] | None,
    names: FormatFields = CHAT_FIELDS,
    structured: StructuredOutputs | None = None,
) -> tuple[Constraint | None, str]:
    """Return the constraint of a body, and the field that sets it; empty if there is none.

    The format field may have another name than ``response_format``. Raises ``ApiError``.
    """
    constraints: list[tuple[Constraint, str]] = [(constraint, constraint.kind) for constraint in _expressions(body)]
    constraints += [
        (constraint, _format_field(constraint, response_format, names))
        for constraint in _response_format(response_format, names)
    ]
    if structured is not None:
        constraints.append((_structured(structured), f"structured_outputs.{structured.kinds()[0]}"))
    return _single(constraints, body)


def sampling_constraint(params: SamplingBody, name: str = "sampling_params") -> tuple[Constraint | None, str]:
    """Return the constraint in ``sampling_params``, which the request calls ``name``, and the field that sets it.

    Raises ``ApiError``.
    """
    constraints = list(_expressions(params))
    if params.json_schema is not None:
        constraints.append(Constraint("json_schema", _text(params.json_schema)))
    if params.structural_tag is not None:
        constraints.append(Constraint("structural_tag", _text(params.structural_tag)))
    return _single([(constraint, f"{name}.{constraint.kind}") for constraint in constraints], params)


def with_backend(constraint: Constraint | None, backend: str | None) -> Constraint | None:
    """Return the constraint with the grammar backend that must enforce it; unchanged if none is named."""
    return replace(constraint, backend=backend) if constraint and backend else constraint


def _format_field(constraint: Constraint, response_format: dict[str, Any] | None, names: FormatFields) -> str:
    """Return the part of the format field that has the schema, if the constraint is one."""
    if constraint.kind != "json_schema":
        return names.format
    response_format = response_format or {}
    if _has_own_schema(response_format):
        return f"{names.format}.schema"
    named = response_format.get("json_schema")
    return f"{names.named}.{'schema' if isinstance(named, dict) and 'schema' in named else 'schema_'}"


def _single(constraints: list[tuple[Constraint, str]], body: ConstraintFields) -> tuple[Constraint | None, str]:
    if len(constraints) > 1:
        raise ApiError(ONLY_ONE, param=constraints[1][1])
    if not constraints:
        return None, ""
    constraint, field = constraints[0]
    check_writable(constraint, field)
    return with_backend(constraint, body.grammar_backend), field


def check_writable(constraint: Constraint, field: str) -> None:
    """Raise ``ApiError`` for a constraint with characters that no output can contain."""
    _check_text(constraint.source, field)


def _check_text(text: str, field: str) -> None:
    if UNWRITABLE.search(text) is not None:
        raise ApiError(f"{field} must not hold NUL or half a surrogate pair", param=field)


def constraint_refusal(constraint: Constraint, field: str, message: str, status: int) -> ApiError:
    """Return the engine's refusal of the constraint in ``field`` as an error that names this field.

    A message about a part of the field names it already: ``tools[2].function.parameters`` of ``tools``.
    """
    message = message.removeprefix(f"{constraint.kind}: ")
    part, colon, _ = message.partition(": ")
    if colon and part.startswith(f"{field}["):
        return ApiError(message, status, param=part)
    return ApiError(f"{field}: {message}", status, param=field)


def _expressions(body: ConstraintFields) -> Iterator[Constraint]:
    if body.regex is not None:
        yield Constraint("regex", body.regex)
    if body.ebnf is not None:
        yield Constraint("ebnf", body.ebnf)


def _structured(structured: StructuredOutputs) -> Constraint:
    """Return the constraint of ``structured_outputs``, which has exactly one."""
    match structured.kinds()[0]:
        case "json":
            return Constraint("json_schema", _text(structured.json_))
        case "regex":
            return Constraint("regex", structured.regex or "")
        case "choice":
            _check_text("".join(structured.choice or ()), "structured_outputs.choice")
            return Constraint("choice", _text(structured.choice))
        case "grammar":
            return Constraint("ebnf", structured.grammar or "")
        case "structural_tag":
            return Constraint("structural_tag", _text(structured.structural_tag))
        case _:
            return Constraint("json_object")


def _response_format(format: dict[str, Any] | None, names: FormatFields) -> Iterator[Constraint]:
    match format.get("type") if format else "text":
        case "text":
            return
        case "json_object" | "json_schema" if format is not None and _has_own_schema(format):
            yield Constraint("json_schema", _schema(format, names.format, names))
        case "json_object":
            yield Constraint("json_object")
        case "json_schema":
            yield Constraint("json_schema", _schema((format or {}).get("json_schema"), names.named, names))
        case "structural_tag":
            yield Constraint("structural_tag", _text(format))
        case None:
            raise ApiError(f"{names.format} needs a type: one of {', '.join(FORMATS)}", param=names.format)
        case kind:
            raise ApiError(
                f"{names.format}.type {str(kind)[:SHOWN]!r} is unknown; known: {', '.join(FORMATS)}",
                param=names.format,
            )


def _has_own_schema(format: Mapping[str, Any]) -> bool:
    """Report whether the schema stands next to the type, as llama.cpp (``json_object``) and SGLang accept it."""
    return format.get("schema") is not None and not format.get("json_schema")


def _schema(holder: Any, field: str, names: FormatFields) -> str:
    """Return the schema in ``holder``, which the request calls ``field``.

    Its ``strict`` has no effect: a schema is always enforced or refused.
    """
    if not isinstance(holder, dict):
        raise ApiError(f"{field} must be an object with name and schema", param=names.format)
    schema = holder.get("schema", holder.get("schema_"))
    if schema is None:
        raise ApiError(
            f"schema_ is required for json_schema response format request: set {field}.schema",
            param=names.format,
        )
    if not isinstance(schema, dict | bool):
        raise ApiError(f"{field}.schema must be a JSON schema", param=names.format)
    return _text(schema)


def _text(source: Any) -> str:
    return source if isinstance(source, str) else json.dumps(source, ensure_ascii=False, separators=(",", ":"))
