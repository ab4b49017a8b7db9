"""Structured outputs with outlines-core: JSON of bounded depth, regular expressions, choices."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import GrammarSpec, hookimpl


@hookimpl
def register_grammar_backends() -> Iterator[GrammarSpec]:
    yield GrammarSpec(
        name="outlines",
        target="sglang_plug_backends.outlines.grammar:OutlinesBackend",
        settings="sglang_plug_backends.outlines.settings:OutlinesSettings",
        summary="JSON schemas without recursion, regular expressions and choices, as tables of states",
        needs=("outlines_core",),
        forms=frozenset({"json_schema", "json_object", "regex", "choice"}),
    )
