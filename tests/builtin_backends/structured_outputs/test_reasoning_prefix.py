"""Grammars that begin after a reasoning prefix, however its end marker is divided into tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Grammar, ReasoningPrefix, Vocabulary
from sglang_plug.ops.sampling import mask_bias
from sglang_plug_backends.structured_outputs.reasoning_prefix import DeferredConstraint, EndMarkers
from tests.core.text_grammar import OneOfTexts

LONGER = [b"</", b"think", b">", b"</think>", b">\n", b">{", b"k>\n\n", b"</think>x", b"a</", b"think>", b"yes", b"<t"]
PIECES = [b"", b"", *(bytes([octet]) for octet in range(256)), *LONGER, b"", b""]
IDS = {piece: token for token, piece in enumerate(PIECES) if piece}
EOS, CHANNEL, MESSAGE = 0, len(PIECES) - 2, len(PIECES) - 1
VOCABULARY = Vocabulary(PIECES, (EOS,))


class Forced(OneOfTexts):
    """A grammar that accepts one text, and forces it."""

    def forced(self) -> bytes:
        (text,) = self.texts
        return text[len(self.generated) :]


def grammar(text: bytes = b"yes", ends: Sequence[bytes] = (b"</think>",), opening: bytes = b"") -> DeferredConstraint:
    runs = tuple(tuple(IDS[bytes([octet])] for octet in end) for end in ends)
    first = tuple(IDS[bytes([octet])] for octet in opening)
    return make(text, ReasoningPrefix(runs, first))


def make(text: bytes, reasoning_prefix: ReasoningPrefix, stops: Sequence[int] = ()) -> DeferredConstraint:
    return DeferredConstraint(Forced(PIECES, [text]), reasoning_prefix, EndMarkers(VOCABULARY), stops)


def allowed(grammar: Grammar) -> set[int]:
    mask = torch.full((1, VOCABULARY.words), -1, dtype=torch.int32)
    grammar.fill(mask, 0)
    return set((mask_bias(mask, VOCABULARY.size)[0] == 0).nonzero()[:, 0].tolist())


def write(grammar: Grammar, *pieces: bytes) -> None:
    for piece in pieces:
        assert IDS[piece] in allowed(grammar), piece
        assert grammar.accept(IDS[piece]), piece


EVERY = set(range(VOCABULARY.size))


def test_everything_but_the_end_may_stand_in_a_preamble() -> None:
    prefixed = grammar()
    assert EVERY - allowed(prefixed) == {EOS, IDS[b"</think>x"]}
    assert (prefixed.may_end, prefixed.ended, prefixed.forced()) == (False, False, b"")
    assert not prefixed.accept(EOS) and not prefixed.accept(IDS[b"</think>x"]) and not prefixed.accept(-1)
    write(prefixed, b"y", b"</", b"think")
    assert EVERY - allowed(prefixed) == {EOS, IDS[b"</think>x"], IDS[b">{"]}
    assert not prefixed.accept(IDS[b">{"])


@pytest.mark.parametrize(
    "cut",
    [
        [b"</think>"],
        [b"</", b"think", b">"],
        [b"</", b"think", b">\n"],
        [b"a</", b"think>"],
        [b"<", b"/", b"t", b"h", b"i", b"n", b"k>\n\n"],
        [b"<", b"</", b"think>"],
    ],
)
def test_the_end_is_found_however_it_is_cut(cut: list[bytes]) -> None:
    prefixed = grammar()
    write(prefixed, b"n", b"o", *cut)
    assert prefixed.forced() == b"yes" and allowed(prefixed) == {IDS[b"y"], IDS[b"yes"]}
    assert not prefixed.accept(IDS[b"n"])
    write(prefixed, b"yes")
    assert prefixed.may_end and prefixed.ended


def test_ends_with_special_tokens() -> None:
    final = (CHANNEL, IDS[b"y"], MESSAGE)
    prefixed = make(b"yes", ReasoningPrefix((final, (CHANNEL, MESSAGE))))
    for token in (CHANNEL, IDS[b"n"], MESSAGE, IDS[b"y"], MESSAGE):
        assert prefixed.accept(token) and not prefixed.forced()
    for token in final:
        assert prefixed.accept(token)
    assert prefixed.forced() == b"yes"


def test_stop_tokens_of_the_request_that_are_no_text_end_no_preamble() -> None:
    prefixed = make(b"yes", ReasoningPrefix(((CHANNEL,),)), (MESSAGE, IDS[b"n"]))
    assert MESSAGE not in allowed(prefixed) and IDS[b"n"] in allowed(prefixed)


def test_an_optional_preamble() -> None:
    prefixed = grammar(opening=b"<t")
    assert allowed(prefixed) == {IDS[b"<"], IDS[b"y"], IDS[b"yes"]} and not prefixed.forced()
    assert not prefixed.accept(IDS[b"t"])
    write(prefixed, b"yes")
    assert prefixed.ended
    prefixed.rollback(1)
    write(prefixed, b"<")
    assert allowed(prefixed) == {IDS[b"t"]}
    write(prefixed, b"t", b"n", b"</think>", b"yes")
    assert prefixed.ended


def test_what_may_be_an_opening_or_not_is_both_until_it_is_clear() -> None:
    for continues, end in ((b"e", b""), (b"t", b"</think>")):
        prefixed = grammar(text=b"<tes" if end else b"<es", opening=b"<t")
        write(prefixed, b"<", continues)
        if end:
            write(prefixed, b"n", end, b"<t", b"e", b"s")
        else:
            write(prefixed, b"s")
        assert prefixed.ended


@given(st.data())
def test_taking_back_leads_to_where_it_was(data: st.DataObject) -> None:
    prefixed = data.draw(st.sampled_from([grammar(), grammar(opening=b"<t"), grammar(text=b"<tyes", opening=b"<t")]))
    masks = [allowed(prefixed)]
    likely = [IDS[piece] for piece in (b"<", b"t", b"</", b"think", b">", b"</think>", b"yes", b"y", b"e", b"s")]
    for _ in range(data.draw(st.integers(1, 12))):
        choices = [token for token in likely if token in masks[-1]] or sorted(masks[-1])
        if not choices:
            break
        assert prefixed.accept(data.draw(st.sampled_from(choices)))
        masks.append(allowed(prefixed))
    count = data.draw(st.integers(0, len(masks) - 1))
    prefixed.rollback(count)
    assert allowed(prefixed) == masks[len(masks) - 1 - count]
    with pytest.raises(ValueError, match="cannot take back"):
        prefixed.rollback(len(masks))
