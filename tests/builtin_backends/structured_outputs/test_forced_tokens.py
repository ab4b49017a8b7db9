"""Forced text is encoded together with the text before it; here by a tokenizer with longest matches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Vocabulary
from sglang_plug_backends.structured_outputs.forced_tokens import (
    CONTINUATIONS,
    MAX_BYTES,
    ForcedTokenizer,
    JumpForwardTokens,
)

LONGER = '{" ": ":_ ":_" ",_" "} _" name ame na me _na _the the_ he 漢 漢字 \n\n \n _1 12 abc bcd "a "" '.split(" ")
TEXTS = [text.replace("_", " ").encode() for text in LONGER if text]
PIECES = [b"", *(bytes([octet]) for octet in range(256)), *TEXTS]
IDS = {piece: token for token, piece in enumerate(PIECES) if piece}
ALPHABET = 'name{}":, \nthe12abcd漢字_'


def encode(text: str) -> list[int]:
    data, ids = text.encode(), []
    while data:
        piece = next(data[:size] for size in range(len(data), 0, -1) if data[:size] in IDS)
        ids.append(IDS[piece])
        data = data[len(piece) :]
    return ids


def with_blank(text: str) -> list[int]:
    return encode(f" {text}")


VOCABULARY = Vocabulary(PIECES, encode=encode)


def pieces_of(jump: JumpForwardTokens) -> tuple[list[bytes], list[bytes]]:
    pieces = [PIECES[token] for token in jump.tokens]
    return pieces[: jump.stable_count], pieces[jump.stable_count :]


def test_what_may_be_joined_with_what_follows_is_held_back() -> None:
    forced_tokenizer = ForcedTokenizer(VOCABULARY)
    assert pieces_of(forced_tokenizer.tokenize((), b'{"name": "')) == ([b'{"', b"name"], [b'": "'])
    assert pieces_of(forced_tokenizer.tokenize((), b'{"name')) == ([b'{"'], [b"name"]), "a word may go on"
    assert pieces_of(forced_tokenizer.tokenize((), b"abc, me")) == ([b"abc", b",", b" "], [b"me"])
    assert pieces_of(forced_tokenizer.tokenize((), b"\n")) == ([], [b"\n"])


def test_a_text_that_joins_what_stands_before_it_is_not_cut() -> None:
    forced_tokenizer = ForcedTokenizer(VOCABULARY)
    assert forced_tokenizer.tokenize((IDS[b"{"],), b'"name": 1') == JumpForwardTokens(), (
        "the tokenizer makes one token of these"
    )
    assert pieces_of(forced_tokenizer.tokenize((IDS[b"}"],), b'"name": 1')) == ([b'"', b"name", b'": '], [b"1"])
    assert forced_tokenizer.tokenize((IDS[b"{"], 0), b'"name": 1').tokens, "a special token stands between"


def test_halves_of_characters() -> None:
    forced_tokenizer = ForcedTokenizer(VOCABULARY)
    assert pieces_of(forced_tokenizer.tokenize((), "} é".encode()[:-1])) == ([b"}"], [b" "]), (
        "the character has to wait"
    )
    assert forced_tokenizer.tokenize((), "é".encode()[:1]) == JumpForwardTokens()
    assert pieces_of(forced_tokenizer.tokenize((IDS[b"\xc3"],), b"\xa9: x")) == ([b"\xa9", b":", b" "], [b"x"])
    assert forced_tokenizer.tokenize((IDS[b"\xe6"],), b"\xbc\xa2") == JumpForwardTokens(), (
        "the tokenizer has one token for the character"
    )


def test_tokenizers_that_begin_texts_with_a_blank() -> None:
    forced_tokenizer = ForcedTokenizer(Vocabulary(PIECES, encode=with_blank))
    assert pieces_of(forced_tokenizer.tokenize((), b'the "name": ')) == ([b"the ", b'"', b"name"], [b'": '])


def test_without_a_tokenizer_nothing_is_cut() -> None:
    assert ForcedTokenizer(Vocabulary(PIECES)).tokenize((), b"{}") == JumpForwardTokens()
    assert ForcedTokenizer(VOCABULARY).tokenize((), b"") == JumpForwardTokens()


def test_tokens_that_the_model_does_not_have() -> None:
    few = Vocabulary(PIECES[: IDS[b"name"]], encode=encode)
    assert ForcedTokenizer(few).tokenize((), b'"name": 1') == JumpForwardTokens()


def test_long_texts_are_cut_in_parts() -> None:
    jump = ForcedTokenizer(VOCABULARY).tokenize((), b"{}" * MAX_BYTES)
    assert len(b"".join(PIECES[token] for token in jump.tokens)) == MAX_BYTES


@given(st.text(ALPHABET, max_size=6), st.text(ALPHABET, min_size=1, max_size=12), st.sampled_from(CONTINUATIONS))
def test_stable_tokens_are_those_of_the_whole(before: str, text: str, suffix: str) -> None:
    output = encode(before)
    jump = ForcedTokenizer(VOCABULARY).tokenize(output, text.encode())
    assert b"".join(PIECES[token] for token in jump.tokens) in (b"", text.encode())
    whole = encode(b"".join(PIECES[token] for token in output[-4:]).decode(errors="ignore") + text + suffix)
    stable = list(jump.tokens[: jump.stable_count])
    starts = [start for start in range(len(whole) + 1) if whole[start : start + len(stable)] == stable]
    assert starts, "the tokenizer cuts the whole in the same way"


@pytest.mark.parametrize("text", ['{"name": "', "the name 12", "}\n\n{"])
def test_cuts_are_remembered(text: str) -> None:
    calls = list[str]()

    def counted(text: str) -> list[int]:
        calls.append(text)
        return encode(text)

    forced_tokenizer = ForcedTokenizer(Vocabulary(PIECES, encode=counted))
    first = forced_tokenizer.tokenize((5,), text.encode())
    count = len(calls)
    assert forced_tokenizer.tokenize((5,), text.encode()) == first and len(calls) == count > 0
