"""Structured outputs with llguidance: JSON schemas, regular expressions, EBNF, structural tags, choices."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import GrammarSpec, hookimpl


@hookimpl
def register_grammar_backends() -> Iterator[GrammarSpec]:
    yield GrammarSpec(
        name="llguidance",
        target="sglang_plug_backends.llguidance.grammar:LLGuidanceBackend",
        settings="sglang_plug_backends.llguidance.settings:LLGuidanceSettings",
        summary="JSON schemas with additional keywords, regular expressions, EBNF, structural tags and choices",
        needs=("llguidance",),
    )
