"""The cases of the conformance test agree with independent implementations."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from sglang_plug.testing.text.grammars.grammar import small_vocabulary
from sglang_plug.testing.text.grammars.grammar_cases import GrammarCase, grammar_cases
from sglang_plug.testing.text.grammars.json_schema import is_allowed
from sglang_plug.testing.text.grammars.schema_cases import SCHEMAS, Raw

CASES = list(grammar_cases())
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


@pytest.mark.parametrize("case", [case for case in CASES if not case.broken], ids=lambda case: case.name)
def test_the_judge_agrees_with_the_examples(case: GrammarCase) -> None:
    assert all(case.judge(text) for writings in case.good for text in writings)
    assert not any(case.judge(text) for writings in case.bad for text in writings)
    assert case.good and case.bad


# ``nullable`` is a keyword of OpenAPI only
@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != "nullable"])
def test_examples_of_schemas_are_what_the_standard_says(name: str) -> None:
    schema, good, bad = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    for value in good:
        validator.validate(value)
    for value in bad:
        if not isinstance(value, Raw):
            assert not validator.is_valid(value), value


def test_names_are_unique_and_every_kind_has_broken_ones() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    kinds = {case.constraint.kind for case in CASES}
    assert {case.constraint.kind for case in CASES if case.broken} == kinds - {"json_object"}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "1.5"),
        ({"type": "integer"}, "true"),
        ({"enum": [1]}, "true"),
        ({"multipleOf": 0.1}, "0.25"),
        ({"type": "string", "pattern": "^a$"}, '"a\\n"'),
        ({"type": "string"}, '"\\ud800"'),
        ({"properties": {"a": {"type": "integer"}}}, '{"a": "x", "a": 1}'),
        ({"properties": {"a": {"type": "integer"}}}, '{"a": 1, "a": "x"}'),
        ({"prefixItems": [True], "items": False}, "[1, 2]"),
        (True, "NaN"),
        (True, "1 2"),
        (False, "1"),
    ],
)
def test_the_judge_refuses(schema: Any, text: str) -> None:
    assert not is_allowed(text, schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "1e2"),
        ({"enum": [1]}, "1.0"),
        ({"multipleOf": 0.1}, "50.8"),
        ({"items": {"type": "null"}}, "3"),
        ({"nonsense": {"not": {}}}, "3"),
        ({"enum": ["a"], "nullable": True}, "null"),
    ],
)
def test_the_judge_allows(schema: Any, text: str) -> None:
    assert is_allowed(text, schema)


def test_the_judge_says_what_it_does_not_know() -> None:
    with pytest.raises(NotImplementedError, match="'unevaluatedItems'"):
        is_allowed("1", {"unevaluatedItems": False})


def test_the_small_vocabulary_has_what_real_ones_have() -> None:
    vocabulary = small_vocabulary()
    pieces = [piece for piece in vocabulary.pieces if piece]
    assert {bytes([octet]) for octet in range(256)} < set(pieces)
    assert len(set(pieces)) < len(pieces)
    assert vocabulary.size % 32 and all(not vocabulary.pieces[token] for token in vocabulary.stop_ids)
    assert {'{"', '": "', "漢字", "\n "} <= {json.loads(json.dumps(piece.decode(errors="replace"))) for piece in pieces}
