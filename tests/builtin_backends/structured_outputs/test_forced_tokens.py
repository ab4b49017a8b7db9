"""What is forced becomes the tokens that a tokenizer makes of the whole; here one that joins the longest pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Vocabulary
from sglang_plug_backends.structured_outputs.forced_tokens import FOLLOWERS, MAX_BYTES, Cut, ForcedTokenizer

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


def pieces_of(cut: Cut) -> tuple[list[bytes], list[bytes]]:
    pieces = [PIECES[token] for token in cut.whole]
    return pieces[: cut.stable], pieces[cut.stable :]


def test_what_may_be_joined_with_what_follows_is_held_back() -> None:
    forced_tokenizer = ForcedTokenizer(VOCABULARY)
    assert pieces_of(forced_tokenizer.cut((), b'{"name": "')) == ([b'{"', b"name"], [b'": "'])
    assert pieces_of(forced_tokenizer.cut((), b'{"name')) == ([b'{"'], [b"name"]), "a word may go on"
    assert pieces_of(forced_tokenizer.cut((), b"abc, me")) == ([b"abc", b",", b" "], [b"me"])
    assert pieces_of(forced_tokenizer.cut((), b"\n")) == ([], [b"\n"])


def test_a_text_that_joins_what_stands_before_it_is_not_cut() -> None:
    forced_tokenizer = ForcedTokenizer(VOCABULARY)
    assert forced_tokenizer.cut((IDS[b"{"],), b'"name": 1') == Cut(), "the tokenizer makes one token of these"
    assert pieces_of(forced_tokenizer.cut((IDS[b"}"],), b'"name": 1')) == ([b'"', b"name", b'": '], [b"1"])
    assert forced_tokenizer.cut((IDS[b"{"], 0), b'"name": 1').whole, "a special token stands between"


def test_halves_of_characters() -> None:
    forced_tokenizer = ForcedTokenizer(VOCABULARY)
    assert pieces_of(forced_tokenizer.cut((), "} é".encode()[:-1])) == ([b"}"], [b" "]), "the character has to wait"
    assert forced_tokenizer.cut((), "é".encode()[:1]) == Cut()
    assert pieces_of(forced_tokenizer.cut((IDS[b"\xc3"],), b"\xa9: x")) == ([b"\xa9", b":", b" "], [b"x"])
    assert forced_tokenizer.cut((IDS[b"\xe6"],), b"\xbc\xa2") == Cut(), "the tokenizer has one token for the character"


def test_tokenizers_that_begin_texts_with_a_blank() -> None:
    forced_tokenizer = ForcedTokenizer(Vocabulary(PIECES, encode=with_blank))
    assert pieces_of(forced_tokenizer.cut((), b'the "name": ')) == ([b"the ", b'"', b"name"], [b'": '])


def test_without_a_tokenizer_nothing_is_cut() -> None:
    assert ForcedTokenizer(Vocabulary(PIECES)).cut((), b"{}") == Cut()
    assert ForcedTokenizer(VOCABULARY).cut((), b"") == Cut()


def test_tokens_that_the_model_does_not_have() -> None:
    few = Vocabulary(PIECES[: IDS[b"name"]], encode=encode)
    assert ForcedTokenizer(few).cut((), b'"name": 1') == Cut()


def test_long_texts_are_cut_in_parts() -> None:
    cut = ForcedTokenizer(VOCABULARY).cut((), b"{}" * MAX_BYTES)
    assert len(b"".join(PIECES[token] for token in cut.whole)) == MAX_BYTES


@given(st.text(ALPHABET, max_size=6), st.text(ALPHABET, min_size=1, max_size=12), st.sampled_from(FOLLOWERS))
def test_stable_tokens_are_those_of_the_whole(before: str, text: str, follower: str) -> None:
    output = encode(before)
    cut = ForcedTokenizer(VOCABULARY).cut(output, text.encode())
    assert b"".join(PIECES[token] for token in cut.whole) in (b"", text.encode())
    whole = encode(b"".join(PIECES[token] for token in output[-4:]).decode(errors="ignore") + text + follower)
    stable = list(cut.whole[: cut.stable])
    starts = [start for start in range(len(whole) + 1) if whole[start : start + len(stable)] == stable]
    assert starts, "the tokenizer cuts the whole in the same way"


@pytest.mark.parametrize("text", ['{"name": "', "the name 12", "}\n\n{"])
def test_cuts_are_remembered(text: str) -> None:
    calls = list[str]()

    def counted(text: str) -> list[int]:
        calls.append(text)
        return encode(text)

    forced_tokenizer = ForcedTokenizer(Vocabulary(PIECES, encode=counted))
    first = forced_tokenizer.cut((5,), text.encode())
    count = len(calls)
    assert forced_tokenizer.cut((5,), text.encode()) == first and len(calls) == count > 0
