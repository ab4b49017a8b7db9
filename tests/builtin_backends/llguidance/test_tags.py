"""Structural tags in llguidance: the allowed texts, and refusals of ambiguous ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
OBJECT = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": INTEGER["json_schema"]}}}
ANY = {"type": "any_text"}


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def sequence(*parts: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(parts)}


def either(*parts: Any) -> dict[str, Any]:
    return {"type": "or", "elements": list(parts)}


def repeated(kind: str, part: Any) -> dict[str, Any]:
    return {"type": kind, "content": part}


def tag(begin: str, content: Any, end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def untyped(form: dict[str, Any]) -> dict[str, Any]:
    """Return a tag without its type, which members of ``tags`` need not have."""
    return {field: value for field, value in form.items() if field != "type"}


def separated(*tags: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": list(tags), "separator": ", ", **more}


def triggered(*tags: Any, **more: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "tags": list(tags), "triggers": ["<f"], **more}


def without(*texts: str, not_beginning: str = "") -> dict[str, Any]:
    return {**ANY, "excludes": list(texts), **({"not_beginning": not_beginning} if not_beginning else {})}


@pytest.fixture
def backends(grammar_backends: Callable[..., Any]) -> list[Any]:
    """Return both backends that enforce structural tags."""
    return [grammar_backends(name) for name in ("llguidance", "xgrammar")]


CALL, OTHER = tag("<f>", INTEGER, "</f>"), tag("<f2>", OBJECT, "</f2>")
F, G = tag("f(", INTEGER, ")"), tag("get(", OBJECT, ")")


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (const("abc"), ["abc"], ["", "ab", "abcd"]),
        (sequence(const("a"), const(""), const("b")), ["ab"], ["a", "b"]),
        (either(const("a"), const("b"), const("cd")), ["a", "b", "cd"], ["", "ab", "c"]),
        (sequence(repeated("star", const("a")), const("b")), ["b", "ab", "aaab"], ["a", "ba", ""]),
        (repeated("plus", sequence(const("("), INTEGER, const(")"))), ["(1)", "(1)(20)"], ["", "(1", "()"]),
        (sequence(INTEGER, repeated("optional", const("!"))), ["1", "1!"], ["!", "1!!"]),
        (CALL, ["<f>1</f>"], ["<f>a</f>", "<f>1", "1"]),
        (separated(F, G), ["", "f(1)", 'get({"a": 1}), f(2), f(3)'], ["f(1),", "f(1)f(2)", "f({})"]),
        (separated(untyped(F), untyped(G)), ["", "f(1)", 'get({"a": 1}), f(2)'], ["f(1),", "f(1)f(2)", "f({})"]),
        (triggered(untyped(CALL)), ["", "x < f", "a<f>1</f>b"], ["<f", "<f>x</f>", "<f3>1</f3>"]),
        (separated(F, at_least_one=True), ["f(1)", "f(1), f(2)"], ["", ", f(1)"]),
        (separated(F, stop_after_first=True), ["", "f(1)"], ["f(1), f(2)"]),
        (triggered(CALL, OTHER), ["", "x < f", "a<f>1</f>b<f2>{}</f2>", "<"], ["<f", "<f>x</f>", "<f3>1</f3>"]),
        (triggered(CALL, at_least_one=True), ["<f>1</f>", "<f>1</f>b<f>2</f>"], ["", "a<f>1</f>", "<f>x</f>"]),
        (triggered(CALL, stop_after_first=True), ["a", "a<f>1</f>"], ["a<f>1</f>b", "<f>1</f><f>2</f>"]),
        (triggered(CALL, excludes=["!"]), ["a?<f>1</f>"], ["a!", "<f>1</f>!"]),
        (ANY, ["", "a\n漢"], []),
        (without("<f>", "!"), ["", "<f", "<<f", "<f <"], ["<f>", "a<f>b", "!", "<<f>"]),
        (without(not_beginning=" *[(]a"), ["", "(", "x(a", "( a", "(b"], ["(a", "  (abc"]),
        (sequence(without("<f>"), CALL, without("<f>")), ["<f>1</f>", "<<f>1</f><"], ["", "<f>1</f><f>1</f>"]),
        (sequence(without("x"), {"type": "token", "token": "x"}, const("y")), ["xy", "axy"], ["y", "xxy"]),
        (either(const("("), without(not_beginning="[(]")), ["(", "a("], ["(a", "(("]),
    ],
)
def test_formats(backends: list[Any], form: Any, good: list[str], bad: list[str]) -> None:
    for backend in backends:
        compiled = backend("structural_tag", {"type": "structural_tag", "format": form})
        assert [text for text in good if not compiled.accepts(text)] == [], backend.name
        assert [text for text in bad if compiled.accepts(text)] == [], backend.name


def test_the_older_form(backends: list[Any]) -> None:
    structures = [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}]
    for backend in backends:
        compiled = backend("structural_tag", {"structures": structures, "triggers": ["<f>"]})
        assert compiled.accepts("a <f>1</f> b") and not compiled.accepts("<f>a</f>")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"type": "regex", "pattern": "a"}, "the format 'regex' at format cannot be enforced by this backend"),
        (sequence(const("a"), {"type": "grammar", "grammar": "x"}), "'grammar' at format/elements/1"),
        (sequence(ANY, const("a")), "free text before 'a' might contain that text"),
        (sequence(without("aba"), const("aba")), "free text before 'aba' might contain that text"),
        (sequence(without("a"), INTEGER), "a value follows free text directly; put a fixed text between them"),
        (sequence(without("a"), without("b")), "a free text follows another one"),
        (sequence(INTEGER, const("1")), "what follows a JSON value might belong to the value"),
        (either(INTEGER, const("1")), "a value is an alternative to another format"),
        (
            either(sequence(const("a"), INTEGER), sequence(const("ab"), INTEGER)),
            "the alternative 'a' is a prefix of 'ab', and both continue",
        ),
        ({**INTEGER, "style": "python_arguments"}, "type at # must be 'object'"),
        ({**OBJECT, "style": "python_arguments"}, "the arguments of a call are not followed by ')'"),
        ({**OBJECT, "style": "xml"}, "the style 'xml' at format is unknown"),
        ({"type": "json_schema"}, "format needs json_schema"),
        ({"type": "json_schema", "json_schema": {"not": {}}}, "the keyword 'not' at #"),
        (triggered(tag("<g>", INTEGER, "</g>")), "format/tags/0 must begin with one of the triggers"),
        (separated(const("a")), "format/tags/0 must be a tag"),
        (tag("<f>", INTEGER, ["a"]), "format/end must be text"),  # type: ignore[arg-type]
        ({**ANY, "excludes": [""]}, "format/excludes must be a list of texts"),
        ({**ANY, "not_beginning": "("}, ""),
        (repeated("star", const("")), ""),
    ],
)
def test_refusals(backends: list[Any], form: Any, words: str) -> None:
    result = backends[0].refusal("structural_tag", {"type": "structural_tag", "format": form})
    assert words in result and (result or not words)


def test_special_tokens(grammar_backends: Callable[..., Any]) -> None:
    backend = grammar_backends("llguidance", ("<|call|>", "<|end|>"))
    call, end = {"type": "token", "token": "<|call|>"}, {"type": "token", "token": "<|end|>"}
    form = sequence(without("<|call|>"), call, INTEGER, end, ANY)
    grammar = backend("structural_tag", {"type": "structural_tag", "format": form}).begin()
    special = backend.backend.vocabulary.special
    first, last = special["<|call|>"], special["<|end|>"]
    assert not grammar.accept(last) and not grammar.accept(1 + 0xFF) and grammar.forced() == b""
    assert grammar.accept(1 + ord("<")) and grammar.accept(first) and not grammar.accept(first)
    assert grammar.accept(1 + ord("5")) and not grammar.may_end and grammar.accept(last) and grammar.may_end
    assert not grammar.accept(last) and grammar.accept(1 + ord("x")) and not grammar.ended
    grammar.rollback(3)
    assert not grammar.may_end and not grammar.accept(last) and grammar.accept(1 + ord("7"))
    forced = backend("structural_tag", {"type": "structural_tag", "format": sequence(const("ab"), call, const("c"))})
    assert forced.begin().forced() == b"ab"


def test_a_large_tag_is_refused(grammar_backends: Callable[..., Any]) -> None:
    tags = [tag(f"{at}(", OBJECT, ")") for at in range(20_000)]
    source = json.dumps({"type": "structural_tag", "format": separated(*tags)})
    assert "would have more than" in grammar_backends("llguidance").refusal("structural_tag", source)
