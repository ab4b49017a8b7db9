from __future__ import annotations

import pytest
from sglang_plug_recall import RecallDrafter, Settings, register_drafters

from sglang_plug.testing import check_drafter

PROMPT, ANSWER = [7, 8, 9, 10], list(range(20, 40))


def remembering(**settings: int) -> RecallDrafter:
    drafter = RecallDrafter(Settings(**settings))
    drafter.begin(PROMPT, salt="").end(ANSWER)
    return drafter


def test_an_answer_is_expected_again() -> None:
    sequence = remembering().begin(PROMPT, salt="")
    assert sequence.propose(ANSWER[:1], 4) == ANSWER[1:5]
    assert sequence.propose(ANSWER[1:7], 99) == ANSWER[7:]


def test_only_what_has_enough_in_common_is() -> None:
    sequence = remembering().begin([1, 2, 3], salt="")
    assert list(sequence.propose(ANSWER[3:6], 4)) == []
    assert sequence.propose(ANSWER[6:7], 4) == ANSWER[7:11]


def test_nothing_is_told_to_another_tenant() -> None:
    assert list(remembering().begin(PROMPT, salt="another").propose(ANSWER[:4], 4)) == []


def test_the_latest_answer_counts() -> None:
    drafter = remembering()
    drafter.begin(PROMPT, salt="").end([*ANSWER[:4], 99, 98])
    assert drafter.begin(PROMPT, salt="").propose(ANSWER[:4], 8) == [99, 98]


def test_the_oldest_is_forgotten_with_all_its_positions() -> None:
    drafter = remembering(tokens=30)
    drafter.begin(PROMPT, salt="").end([1, 2, 3, 4, 5, 6, 7, 8])
    assert list(drafter.begin(PROMPT, salt="").propose(ANSWER[:1], 4)) == []
    assert len(drafter._continuations) == 8 and drafter._size == 12


def test_it_keeps_the_contract() -> None:
    check_drafter(lambda: RecallDrafter(Settings(match=2)))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        Settings(match=0)


def test_it_declares_one_drafter_whose_target_is_here() -> None:
    (spec,) = register_drafters()
    assert (spec.kind, spec.name, spec.target) == ("drafter", "recall", "sglang_plug_recall:RecallDrafter")
