"""Tests that raise ``TooLate`` are repeated, and no others."""

from __future__ import annotations

import pytest

from .replaying import TIMES, TooLate, in_time, replayed, wait_in_time, within


def test_a_scene_is_played_until_it_comes_in_time() -> None:
    played: list[int] = []

    @replayed
    def scene(last: int) -> None:
        played.append(last)
        in_time(len(played) == last, "it is the last one")

    scene(3)
    assert played == [3] * 3
    played.clear()
    with pytest.raises(TooLate, match="it is the last one"):
        scene(TIMES + 1)
    assert len(played) == TIMES


async def test_scenes_may_be_coroutines_and_what_is_wrong_is_told_at_once() -> None:
    played: list[int] = []

    @replayed
    async def scene() -> None:
        played.append(1)
        in_time(len(played) > 1, "it is the second one")
        raise AssertionError("wrong")

    with pytest.raises(AssertionError, match="^wrong$"):
        await scene()
    assert len(played) == 2


def test_a_connection_that_ends_early_is_the_servers_fault() -> None:
    with pytest.raises(ConnectionResetError), within(600, "the time"):
        raise ConnectionResetError
    with pytest.raises(TooLate, match="the time"), within(0, "the time"):
        raise ConnectionResetError


def test_what_is_not_seen_in_time_is_too_late() -> None:
    answers = iter([0, 0, 3])
    assert wait_in_time(lambda: next(answers), "a number") == 3
    with pytest.raises(TooLate, match="a number"):
        wait_in_time(lambda: 0, "a number", seconds=0.02)
