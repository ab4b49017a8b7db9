from __future__ import annotations

from sglang_plug.testing import check_grammar_backend

MUST = (
    "json_schema: annotations",
    "json_schema: annotations in definitions",
    "json_schema: nullable",
    "json_schema: discriminator",
    "json_schema: optional properties",
    "json_schema: additional properties",
    "json_schema: $ref to itself",
    "json_schema: pattern",
    "json_schema: exclusive bounds",
    "ebnf: sums",
    "structural_tag: one call",
)


def test_it_keeps_the_contract() -> None:
    check_grammar_backend("xgrammar", must=MUST)
