"""Grammars that begin after a preamble, in every way of cutting what ends it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Grammar, ReasoningPrefix, Vocabulary
from sglang_plug.ops.sampling import mask_bias
from sglang_plug_backends.structured_outputs.reasoning_prefix import DeferredConstraint, Ends
from tests.core.written import OneOfTexts

LONGER = [b"</", b"think", b">", b"</think>", b">\n", b">{", b"k>\n\n", b"</think>x", b"a</", b"think>", b"yes", b"<t"]
PIECES = [b"", b"", *(bytes([octet]) for octet in range(256)), *LONGER, b"", b""]
IDS = {piece: token for token, piece in enumerate(PIECES) if piece}
EOS, CHANNEL, MESSAGE = 0, len(PIECES) - 2, len(PIECES) - 1
VOCABULARY = Vocabulary(PIECES, (EOS,))


class Forced(OneOfTexts):
    """One text, which leaves no choice."""

    def forced(self) -> bytes:
        (text,) = self.texts
        return text[len(self.written) :]


def grammar(text: bytes = b"yes", ends: Sequence[bytes] = (b"</think>",), opening: bytes = b"") -> DeferredConstraint:
    runs = tuple(tuple(IDS[bytes([octet])] for octet in end) for end in ends)
    first = tuple(IDS[bytes([octet])] for octet in opening)
    return make(text, ReasoningPrefix(runs, first))


def make(text: bytes, reasoning_prefix: ReasoningPrefix, stops: Sequence[int] = ()) -> DeferredConstraint:
    return DeferredConstraint(Forced(PIECES, [text]), reasoning_prefix, Ends(VOCABULARY), stops)


def allowed(one: Grammar) -> set[int]:
    mask = torch.full((1, VOCABULARY.words), -1, dtype=torch.int32)
    one.fill(mask, 0)
    return set((mask_bias(mask, VOCABULARY.size)[0] == 0).nonzero()[:, 0].tolist())


def write(one: Grammar, *pieces: bytes) -> None:
    for piece in pieces:
        assert IDS[piece] in allowed(one), piece
        assert one.accept(IDS[piece]), piece


EVERY = set(range(VOCABULARY.size))


def test_everything_but_the_end_may_stand_in_a_preamble() -> None:
    one = grammar()
    assert EVERY - allowed(one) == {EOS, IDS[b"</think>x"]}
    assert (one.may_end, one.ended, one.forced()) == (False, False, b"")
    assert not one.accept(EOS) and not one.accept(IDS[b"</think>x"]) and not one.accept(-1)
    write(one, b"y", b"</", b"think")
    assert EVERY - allowed(one) == {EOS, IDS[b"</think>x"], IDS[b">{"]}
    assert not one.accept(IDS[b">{"])


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
    one = grammar()
    write(one, b"n", b"o", *cut)
    assert one.forced() == b"yes" and allowed(one) == {IDS[b"y"], IDS[b"yes"]}
    assert not one.accept(IDS[b"n"])
    write(one, b"yes")
    assert one.may_end and one.ended


def test_ends_with_special_tokens() -> None:
    final = (CHANNEL, IDS[b"y"], MESSAGE)
    one = make(b"yes", ReasoningPrefix((final, (CHANNEL, MESSAGE))))
    for token in (CHANNEL, IDS[b"n"], MESSAGE, IDS[b"y"], MESSAGE):
        assert one.accept(token) and not one.forced()
    for token in final:
        assert one.accept(token)
    assert one.forced() == b"yes"


def test_stop_tokens_of_the_request_that_are_no_text_end_no_preamble() -> None:
    one = make(b"yes", ReasoningPrefix(((CHANNEL,),)), (MESSAGE, IDS[b"n"]))
    assert MESSAGE not in allowed(one) and IDS[b"n"] in allowed(one)


def test_an_optional_preamble() -> None:
    one = grammar(opening=b"<t")
    assert allowed(one) == {IDS[b"<"], IDS[b"y"], IDS[b"yes"]} and not one.forced()
    assert not one.accept(IDS[b"t"])
    write(one, b"yes")
    assert one.ended
    one.rollback(1)
    write(one, b"<")
    assert allowed(one) == {IDS[b"t"]}
    write(one, b"t", b"n", b"</think>", b"yes")
    assert one.ended


def test_what_may_be_an_opening_or_not_is_both_until_it_is_clear() -> None:
    for continues, end in ((b"e", b""), (b"t", b"</think>")):
        one = grammar(text=b"<tes" if end else b"<es", opening=b"<t")
        write(one, b"<", continues)
        if end:
            write(one, b"n", end, b"<t", b"e", b"s")
        else:
            write(one, b"s")
        assert one.ended


@given(st.data())
def test_taking_back_leads_to_where_it_was(data: st.DataObject) -> None:
    one = data.draw(st.sampled_from([grammar(), grammar(opening=b"<t"), grammar(text=b"<tyes", opening=b"<t")]))
    masks = [allowed(one)]
    likely = [IDS[piece] for piece in (b"<", b"t", b"</", b"think", b">", b"</think>", b"yes", b"y", b"e", b"s")]
    for _ in range(data.draw(st.integers(1, 12))):
        choices = [token for token in likely if token in masks[-1]] or sorted(masks[-1])
        if not choices:
            break
        assert one.accept(data.draw(st.sampled_from(choices)))
        masks.append(allowed(one))
    count = data.draw(st.integers(0, len(masks) - 1))
    one.rollback(count)
    assert allowed(one) == masks[len(masks) - 1 - count]
    with pytest.raises(ValueError, match="cannot take back"):
        one.rollback(len(masks))
