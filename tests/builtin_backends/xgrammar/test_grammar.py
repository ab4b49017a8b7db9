"""Other constraint kinds, the portable form, and the methods of an output."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import xgrammar

from sglang_plug import Constraint, ConstraintError, Facts, Grammar, Plugins, Vocabulary
from sglang_plug.contracts.text.grammar import CONSTRAINT_KINDS
from sglang_plug_backends.xgrammar.grammar import XGrammarBackend
from sglang_plug_backends.xgrammar.serialization import Portable
from sglang_plug_backends.xgrammar.settings import XGrammarSettings


def test_it_is_the_backend_chosen_by_default() -> None:
    component = Plugins.discover().resolve("grammar", "auto", Facts())
    assert component.spec.name == "xgrammar"
    assert component.load() is XGrammarBackend
    assert isinstance(component.settings(), XGrammarSettings)


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        ("ebnf", 'root ::= "a" root "b" | ""', ["", "ab", "aabb"], ["aab", "b", "ba"]),
        ("ebnf", 'root ::= [^"\\\\]+ # x\n', ["é(("], ["", '"']),
        ("ebnf", 'root ::= a{2} (a | "b")\na ::= "x"', ["xxx", "xxb"], ["xx"]),
        ("choice", ["yes", 'no "x"', "é", ""], ["yes", 'no "x"', "é", ""], ["ye", "maybe"]),
        ("json_object", "", ["{}", '{"a": [1, {"b": null}], "c": "\\u00e9\\n"}'], ["[]", "1", '{"a":1}', "{'a': 1}"]),
        ("regex", "", [""], ["a"]),
    ],
)
def test_kinds(backend: Any, kind: str, source: Any, good: list[str], bad: list[str]) -> None:
    compiled = backend(kind, source)
    assert [text for text in good if not compiled.accepts(text)] == []
    assert [text for text in bad if compiled.accepts(text)] == []


NOT_JSON = "the schema is not valid JSON: Expecting value: line 1 column 1 (char 0)"
EXAMPLES = {
    "json_schema": ('{"const": 1}', "1"),
    "json_object": ("", "{}"),
    "regex": ("a", "a"),
    "ebnf": ('root ::= "a"', "a"),
    "choice": ('["a"]', "a"),
    "structural_tag": ('{"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f>"]}', ""),
}
"""A source for each kind of constraint, and its shortest output."""


@pytest.mark.parametrize("kind", CONSTRAINT_KINDS)
def test_every_declared_kind_is_known(backend: Any, kind: str) -> None:
    source, output = EXAMPLES[kind]
    assert backend(kind, source).accepts(output)
    assert backend.refusal(kind, "") == (NOT_JSON if kind in ("json_schema", "choice", "structural_tag") else "")


TAG = {"begin": "<f>", "end": "</f>"}
BOOLEAN = {"type": "json_schema", "json_schema": {"type": "boolean"}}
SCHEMA = {"properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}


@pytest.mark.parametrize(
    "tag",
    [
        {"structures": [{**TAG, "schema": SCHEMA}], "triggers": ["<f>"]},
        {"type": "structural_tag", "structures": [{**TAG, "schema": SCHEMA}], "triggers": ["<f"]},
        {
            "type": "structural_tag",
            "format": {
                "type": "triggered_tags",
                "triggers": ["<f>"],
                "tags": [{"type": "tag", **TAG, "content": {"type": "json_schema", "json_schema": SCHEMA}}],
            },
        },
    ],
)
def test_structural_tags_constrain_what_stands_in_them(backend: Any, tag: Any) -> None:
    compiled = backend("structural_tag", tag)
    for text in ("", "free text", '<f>{"a": 3}</f>', 'x<f>{"a": 3}</f>y<f>{"a": 12}</f>'):
        assert compiled.accepts(text), text
    for text in ('<f>{"a": 2}</f>', "<f>{}</f>", "<f>x", '<f>{"a": 3}'):
        assert not compiled.accepts(text), text


def test_formats_of_structural_tags(backend: Any) -> None:
    parts = [
        {"type": "const_string", "value": "A"},
        {"type": "or", "elements": [{"type": "regex", "pattern": "b+"}, BOOLEAN]},
        {"type": "grammar", "grammar": 'root ::= "(" root ")" | "-"'},
        {"type": "optional", "content": {"type": "const_string", "value": "!"}},
        {"type": "star", "content": {"type": "const_string", "value": "*"}},
        {"type": "plus", "content": {"type": "const_string", "value": "+"}},
    ]  # fmt: skip
    compiled = backend("structural_tag", {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}})
    for text in ("Ab-+", "Abbb((-))!**++", "Atrue-+"):
        assert compiled.accepts(text), text
    for text in ("A-+", "Ab(-+", "Abtrue-+", "Ab-", "Atru-+"):
        assert not compiled.accepts(text), text


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        ("structural_tag", "-1", "JSON object"),
        ("structural_tag", "{", "not valid JSON"),
        ("structural_tag", "{}", "needs type"),
        ("structural_tag", {"structures": 5, "triggers": []}, "must be lists"),
        ("structural_tag", {"structures": [5], "triggers": []}, "structures/0"),
        ("structural_tag", {"type": "structural_tag", "format": {"type": "token", "token": 1}}, "must be text"),
        ("structural_tag", {"type": "structural_tag", "format": {"type": "any_text", "max_tokens": 1}}, "'max_tokens'"),
        ("structural_tag", {"type": "structural_tag", "format": {"type": "sequence", "elements": []}}, "members"),
        ("structural_tag", {"structures": [{**TAG, "schema": {"not": {}}}], "triggers": ["<f>"]}, "'not'"),
        ("structural_tag", {"type": "structural_tag", "format": {"type": "regex"}}, "format/pattern must be text"),
        ("structural_tag", {"type": "structural_tag", "format": {"type": "regex", "pattern": "(?=a)"}}, "lookarounds"),
        (
            "structural_tag",
            {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}},
            "style",
        ),
        ("choice", [], "list of texts"),
        ("choice", [1], "list of texts"),
        ("choice", "x", "not valid JSON"),
        ("choice", ["\ud800"], "surrogate"),
        ("choice", ["x"] * 5000, "at most"),
        ("ebnf", "root ::= " + "(" * 65 + '"a"' + ")" * 65, "nested"),
        ("ebnf", 'root ::= Regex("a")', "macro Regex"),
        ("ebnf", "root ::= Token(3)", "macro Token"),
        ("ebnf", 'root ::= TagDispatch(("a", b))\nb ::= "x"', "macro TagDispatch"),
        ("ebnf", 'root ::= "a"{1000000}', "repetition"),
        ("ebnf", "#" * 200_000, "at most"),
    ],
)
def test_refusals(backend: Any, kind: str, source: Any, words: str) -> None:
    assert words in backend.refusal(kind, source)


@pytest.mark.parametrize("source", ["root ::= x", 'x ::= "a"', 'root ::= "a', "root ::= ", 'root ::= ("a"', ""])
def test_what_the_compiler_says_reaches_the_caller(backend: Any, source: str) -> None:
    with pytest.raises(ConstraintError, match=r"^EBNF") as caught:
        backend.backend.compile(Constraint("ebnf", source))
    assert "/" not in str(caught.value).partition("line")[0]


def test_a_word_in_quotes_is_no_macro(backend: Any) -> None:
    assert backend("ebnf", 'root ::= "Regex(\\"a\\")" ([(] "(" [)])').accepts('Regex("a")(()')


def test_one_output(backend: Any) -> None:
    grammar = backend("regex", "ab?").begin()
    assert not grammar.may_end and not grammar.ended
    assert not grammar.accept(1 + ord("b")) and not grammar.accept(0) and not grammar.accept(10**6)
    assert grammar.accept(1 + ord("a"))
    assert grammar.may_end and not grammar.ended
    assert grammar.accept(1 + ord("b"))
    assert grammar.may_end and grammar.ended
    grammar.rollback(2)
    assert not grammar.may_end and not grammar.ended
    assert grammar.accept(1 + ord("a")) and grammar.may_end


def test_outputs_of_one_grammar_are_independent(backend: Any) -> None:
    compiled = backend("regex", "ab")
    first, other = compiled.begin(), compiled.begin()
    assert first.accept(1 + ord("a")) and not other.accept(1 + ord("b")) and first.accept(1 + ord("b"))


def test_ids_without_text_are_never_allowed() -> None:
    """Special tokens are never allowed, and neither are the ids that a model has beyond its tokenizer's."""
    vocabulary = Vocabulary([b"a", b"", b"b", *[b""] * 90], (1,))
    backend = XGrammarBackend(vocabulary, XGrammarSettings())
    for kind, source in (
        ("regex", "[ab]*"),
        ("structural_tag", json.dumps({"structures": [TAG], "triggers": ["<f>"]})),
    ):
        constraint = Constraint(kind, source)  # type: ignore[arg-type]
        grammar = backend.load(constraint, backend.compile(constraint))()
        mask = torch.full((1, vocabulary.words), -1, dtype=torch.int32)
        grammar.fill(mask, 0)
        assert mask[0].tolist() == [0b101, 0, 0]
        assert not grammar.accept(1) and not grammar.accept(50)


CALL = {
    "type": "sequence",
    "elements": [
        {"type": "token", "token": "<|call|>"},
        {"type": "const_string", "value": "f"},
        {"type": "token", "token": "<|none|>"},
    ],
}


def tagged(form: Any) -> Constraint:
    return Constraint("structural_tag", json.dumps({"type": "structural_tag", "format": form}))


def test_special_tokens_are_allowed_where_a_tag_names_them(backend: Any) -> None:
    letters = [b"", b"", b"", *(bytes([index]) for index in range(256))]
    vocabulary = Vocabulary(letters, (0,), special={"<|end|>": 0, "<|call|>": 1, "<|other|>": 2})
    special = XGrammarBackend(vocabulary, XGrammarSettings())
    grammar = special.load(tagged(CALL), special.compile(tagged(CALL)))()
    assert not grammar.accept(2) and not grammar.accept(3 + ord("<"))
    mask = torch.full((1, vocabulary.words), -1, dtype=torch.int32)
    grammar.fill(mask, 0)
    assert mask[0].tolist() == [0b10, *[0] * (vocabulary.words - 1)] and grammar.forced() == b""
    assert grammar.accept(1) and not grammar.accept(1) and grammar.accept(3 + ord("f"))
    assert all(grammar.accept(3 + item) for item in b"<|none|>") and grammar.ended  # this model has none
    grammar.rollback(10)
    assert grammar.accept(1)
    assert backend("structural_tag", tagged(CALL).source).accepts("<|call|>f<|none|>")


def test_special_tokens_never_stand_for_text() -> None:
    letters = [b"", b"", *(bytes([index]) for index in range(256))]
    vocabulary = Vocabulary(letters, (0,), special={"<|call|>": 1})
    backend = XGrammarBackend(vocabulary, XGrammarSettings())
    free = {"type": "any_text"}
    tag = {"type": "tag", "begin": "<f>", "end": "</f>", "content": {"type": "regex", "pattern": "a"}}
    tags = {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag]}
    for form in (free, tags):
        grammar = backend.load(tagged(form), backend.compile(tagged(form)))()
        mask = torch.full((1, vocabulary.words), -1, dtype=torch.int32)
        grammar.fill(mask, 0)
        assert not int(mask[0, 0]) & 0b11 and not grammar.accept(1) and grammar.accept(2 + ord("f"))
    for form, refused in ((free, False), ({**free, "excludes": ["<f>"]}, False), (tags, True)):
        adjacent = tagged({"type": "sequence", "elements": [form, {"type": "token", "token": "<|call|>"}, form]})
        assert ("next to 'triggered_tags'" in (backend.refuses(adjacent) or "")) == refused
        if not refused:
            grammar = backend.load(adjacent, backend.compile(adjacent))()
            assert grammar.accept(2 + ord("x")) and grammar.accept(1) and not grammar.accept(1)


@pytest.mark.parametrize("written", ['[^"]', "[\\u0000-\\uffff]", "[^\\]a-]", "[^-a]", "[a\\ud7ff-\\U0001F600]"])
def test_classes_hold_no_half_surrogate_pairs(backend: Any, written: str) -> None:
    compiled = backend("ebnf", f"root ::= {written}*")
    for code in (0xD800, 0xDABC, 0xDFFF):
        assert not compiled.accepts(chr(code))
    assert compiled.accepts("\ud7ff\ue000") and compiled.accepts("-") == (written == '[^"]' or "0000" in written)
    tag = tagged({"type": "grammar", "grammar": f"root ::= {written}*"})
    assert not backend(tag.kind, tag.source).accepts("\ud800")


def test_a_grammar_that_compiles_quickly_is_sent_as_source_and_means_the_same() -> None:
    vocabulary = Vocabulary([b"", *(bytes([index]) for index in range(256)), b'"name": "', b"Anna"], (0,))
    backend, engine = (XGrammarBackend(vocabulary, XGrammarSettings()) for _ in range(2))
    address = {"type": "string", "maxLength": 200}
    lines: Any = {"properties": {f"line{n}": address for n in range(8)}, "required": ["line0"]}
    constraint = Constraint("json_schema", json.dumps(lines))
    compiled = backend.compile(constraint)
    assert len(compiled) < 100_000, "as JSON it has many megabytes"
    assert backend.memory(compiled) > len(compiled)
    portable = Portable.decode(compiled)
    again = XGrammarBackend(vocabulary, XGrammarSettings())
    written = replace(portable, form="json", text=_as_json(again, constraint, portable.text)).encode()
    masks = [_masks(engine.load(constraint, data)(), b'{"line0": "Anna') for data in (compiled, written)]
    assert torch.equal(*masks)


def _as_json(backend: XGrammarBackend, constraint: Constraint, source: str) -> str:
    """Return the compiled source in the form for slow grammars."""
    text: str = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo(
            list(backend.vocabulary.pieces),
            xgrammar.VocabType.RAW,
            vocab_size=backend.vocabulary.size,
            stop_token_ids=[],
        ),
        cache_enabled=False,
    ).compile_grammar(source).serialize_json()  # fmt: skip
    return text


def _masks(grammar: Grammar, text: bytes) -> torch.Tensor:
    """Return the mask before each byte of a text, which the grammar accepts."""
    masks = torch.zeros(len(text), 9, dtype=torch.int32)
    for index, byte in enumerate(text):
        grammar.fill(masks, index)
        assert grammar.accept(byte + 1)
    return masks
