"""Outputs for hundreds of schemas, from a model with random weights, are valid if the finish reason is ``stop``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from .random_schemas import annotated_schemas, long_texts, openapi_schemas, random_schemas
from .written_schemas import BOUNDED, UNBOUNDED, Schema

COUNT = int(os.environ.get("RANDOM_SCHEMAS", "192"))
BATCH = 64
MAX_TOKENS = 1500
CHECKER = Draft202012Validator.FORMAT_CHECKER


@pytest.fixture(scope="module")
def random_server(module_launcher: Any) -> Any:
    """A server of the demo model with random weights: only the grammar leads it to the end of a document."""
    return module_launcher("--load-format", "dummy", "--random-seed", "7", "--grammar-timeout", "240")


def outputs(server: Any, schemas: Sequence[Schema], max_tokens: int, **params: Any) -> list[tuple[Schema, Any]]:
    pairs = []
    for part in (schemas[start : start + BATCH] for start in range(0, len(schemas), BATCH)):
        sampling = [{"json_schema": json.dumps(schema), "max_new_tokens": max_tokens, **params} for schema in part]
        answers = server.generate({"text": ["JSON: "] * len(part), "sampling_params": sampling})
        pairs += list(zip(part, answers, strict=True))
    return pairs


def check(schema: Schema, answer: Any) -> None:
    value = json.loads(answer["text"])
    errors = [error.message for error in Draft202012Validator(schema, format_checker=CHECKER).iter_errors(value)]
    assert errors == [], (schema, answer["text"])


def ended(answer: Any) -> bool:
    return bool(answer["meta_info"]["finish_reason"]["type"] == "stop")


def test_bounded_schemas_are_finished_and_kept_to(random_server: Any) -> None:
    schemas = [*BOUNDED, *random_schemas(COUNT)]
    for schema, answer in outputs(random_server, schemas, MAX_TOKENS):
        assert ended(answer), (schema, answer["text"], answer["meta_info"]["finish_reason"])
        check(schema, answer)
    random_server.wait_whole()


@pytest.mark.parametrize(("backend", "library"), [("llguidance", "llguidance"), ("outlines", "outlines_core")])
def test_long_texts_with_the_other_backends(random_server: Any, backend: str, library: str) -> None:
    pytest.importorskip(library)
    schemas = list(long_texts(COUNT // 16))
    for schema, answer in outputs(random_server, schemas, MAX_TOKENS, grammar_backend=backend, temperature=1):
        assert ended(answer), (schema, answer["text"], answer["meta_info"]["finish_reason"])
        check(schema, answer)
    random_server.wait_whole()


def test_what_ends_of_unbounded_schemas_is_kept_to(random_server: Any) -> None:
    answers = outputs(random_server, UNBOUNDED * 2, 250)
    for schema, answer in answers:
        if ended(answer):
            check(schema, answer)
    assert sum(ended(answer) for _, answer in answers) > len(UNBOUNDED) // 2


def test_annotations_change_nothing(random_server: Any) -> None:
    noisy, plain = zip(*annotated_schemas(COUNT // 8), strict=True)
    params = {"sampling_seed": 1, "temperature": 1}
    with_annotations = outputs(random_server, noisy, MAX_TOKENS, **params)
    without = outputs(random_server, plain, MAX_TOKENS, **params)
    for (noise, answer), (schema, expected) in zip(with_annotations, without, strict=True):
        assert ended(answer) and answer["text"] == expected["text"], noise
        check(schema, answer)


def test_keywords_of_openapi_are_kept_to(random_server: Any) -> None:
    written, read = zip(*openapi_schemas(COUNT // 4), strict=True)
    answers = outputs(random_server, written, MAX_TOKENS)
    for (schema, answer), meaning in zip(answers, read, strict=True):
        assert ended(answer), (schema, answer["text"], answer["meta_info"]["finish_reason"])
        check(meaning, answer)
