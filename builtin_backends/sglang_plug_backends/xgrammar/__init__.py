"""Structured outputs with xgrammar: JSON schemas, regular expressions, EBNF, structural tags, choices."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, GrammarSpec, hookimpl


@hookimpl
def register_grammar_backends() -> Iterator[GrammarSpec]:
    yield GrammarSpec(
        name="xgrammar",
        target="sglang_plug_backends.xgrammar.grammar:XGrammarBackend",
        settings="sglang_plug_backends.xgrammar.settings:XGrammarSettings",
        summary="JSON schemas, regular expressions, EBNF, structural tags and choices",
        needs=("xgrammar",),
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return "xgrammar" if kind == "grammar" else None
