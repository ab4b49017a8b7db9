"""The schemas of the benchmark of new schemas, and its requests."""

from __future__ import annotations

import random

from jsonschema import Draft202012Validator

from benchmarks.grammar_load import schema


def test_generated_schemas_are_valid_distinct_and_deterministic() -> None:
    schemas = [schema(random.Random(seed)) for seed in range(20)]
    for item in schemas:
        Draft202012Validator.check_schema(item)
    assert schemas == [schema(random.Random(seed)) for seed in range(20)]
    assert len({str(entry) for entry in schemas}) == 20
