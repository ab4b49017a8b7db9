"""Sequences that several step extensions hold at the same time."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import pytest

from sglang_plug import (
    AdmissionPhase,
    Finish,
    HoldPhase,
    ReadySequence,
    Request,
    RequestError,
    SequenceView,
    StepExtension,
)
from sglang_plug.engine.extensions.held_sequences import HeldSequences
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.sequences.sequence import Sequence


class Holder(StepExtension, AdmissionPhase, HoldPhase):
    """A step extension that holds every request, refuses it, or does neither."""

    def __init__(self, *, holds: bool = True, refusal: str | None = None) -> None:
        self.holds, self.refusal = holds, refusal
        self.named: list[ReadySequence] = []
        self.finished_ids: list[str] = []

    def hold(self, sequence: SequenceView) -> bool:
        if self.refusal is not None:
            raise RequestError(self.refusal)
        return self.holds

    def ready(self) -> Ordered[ReadySequence]:
        named, self.named = self.named, []
        return named

    def finished(self, sequence: SequenceView) -> None:
        self.finished_ids.append(sequence.request.id)


def held_by(*holders: Holder) -> HeldSequences:
    return HeldSequences(extension_points({str(number): holder for number, holder in enumerate(holders)}).requests)


def sequence(id: str = "a") -> Sequence:
    return Sequence.of(Request(id=id, tokens=(1,)), 9)


def test_a_sequence_that_nobody_holds_is_not_kept() -> None:
    held = held_by(Holder(holds=False))
    assert not held.hold(sequence()) and len(held) == 0 and not held.abort("a")


def test_a_sequence_is_released_when_each_holder_has_named_it() -> None:
    first, idle, last = Holder(), Holder(holds=False), Holder()
    held, seq = held_by(first, idle, last), sequence()
    assert held.hold(seq) and len(held) == 1
    idle.named.append(ReadySequence(seq))
    last.named += [ReadySequence(seq, (5,)), ReadySequence(seq, (6,))]
    assert held.release() == [] and len(held) == 1
    first.named.append(ReadySequence(seq, (7,)))
    assert held.release() == [(seq, None)] and seq.tokens == [1, 5, 7] and len(held) == 0


def test_one_holder_can_end_a_request_that_another_still_holds() -> None:
    first, last = Holder(), Holder()
    held, seq = held_by(first, last), sequence()
    held.hold(seq)
    first.named.append(ReadySequence(seq, finish=Finish("stop")))
    last.named.append(ReadySequence(seq))
    assert held.release() == [(seq, Finish("stop"))] and len(held) == 0
    assert first.finished_ids == last.finished_ids == ["a"]


def test_more_forced_tokens_than_there_is_room_for_end_the_request_by_name() -> None:
    first, last = Holder(), Holder()
    held, seq, fits = held_by(first, last), sequence(), sequence("b")  # of 8 new tokens
    assert held.hold(seq) and held.hold(fits)
    first.named += [ReadySequence(seq, (5,) * 8), ReadySequence(fits, (5,) * 7)]
    last.named.append(ReadySequence(fits))
    (refused, error), released = held.release()
    assert refused is seq and seq.tokens == [1] and released == (fits, None)
    assert isinstance(error, RequestError) and error.status == 500
    assert "step-extension '0': ready() forces 8 tokens, and there is room for 7" in str(error)
    assert first.finished_ids == last.finished_ids == ["a"] and len(held) == 0


def test_a_forced_token_outside_of_the_vocabulary_ends_the_request() -> None:
    holder, seq = Holder(), sequence()
    held = HeldSequences(extension_points({"0": holder}, vocab_size=100).requests)
    held.hold(seq)
    holder.named.append(ReadySequence(seq, (5, 100)))
    (_, error) = held.release()[0]
    assert "step-extension '0': ready() forces token 100, and the vocabulary has 100" in str(error)


def test_a_sequence_that_was_aborted_is_not_released_even_if_its_id_is_used_again() -> None:
    holder = Holder()
    held, seq, again = held_by(holder), sequence(), sequence()
    held.hold(seq)
    assert held.abort("a") and not held.abort("a") and holder.finished_ids == ["a"]
    held.hold(again)
    holder.named.append(ReadySequence(seq, (5,)))
    assert held.release() == [] and len(held) == 1 and seq.tokens == again.tokens == [1]


def test_who_holds_a_request_that_another_refuses_is_told_of_its_end() -> None:
    first = Holder()
    held = held_by(first, Holder(refusal="no"))
    with pytest.raises(RequestError, match="no"):
        held.hold(sequence())
    assert len(held) == 0 and first.finished_ids == ["a"]
    alone = Holder(refusal="no")
    with pytest.raises(RequestError, match="no"):
        held_by(alone).hold(sequence())
    assert alone.finished_ids == ["a"]  # the extension had admitted the request
