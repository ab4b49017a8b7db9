"""Digests of prompt prefixes for routing policies."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Media, MediaArray, Request, prefix_digests

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=30).map(tuple)


def digests(tokens: tuple[int, ...], block: int = 4, max_blocks: int = 100, **more: object) -> list[int]:
    request = Request(id="a", tokens=tokens, **more)  # type: ignore[arg-type]
    return list(prefix_digests(request, range(block, block * max_blocks + 1, block)))


@given(tokens, tokens, tokens)
def test_equal_digests_mean_equal_prefixes(
    shared: tuple[int, ...], tail: tuple[int, ...], other: tuple[int, ...]
) -> None:
    first, second = shared + tail, shared + other
    of_first, of_second = digests(first), digests(second)
    assert (len(of_first), len(of_second)) == (len(first) // 4, len(second) // 4)
    for number, (mine, theirs) in enumerate(zip(of_first, of_second, strict=False), 1):
        assert (mine == theirs) == (first[: 4 * number] == second[: 4 * number])


@pytest.mark.parametrize("number", [-1, 2**32])
def test_prompts_that_the_engine_will_refuse_have_digests(number: int) -> None:
    assert len(set(digests((0, 0, 0, 0, 0, 0, 0, number)))) == 2


def test_no_more_than_asked_for() -> None:
    assert digests(tuple(range(40)), max_blocks=3) == digests(tuple(range(40)))[:3]


def test_salt_adapter_and_images_count() -> None:
    prompt = tuple(range(12))
    image = Media.of(5, 2, {"pixels": MediaArray("uint8", (1,), b"x")})
    other = Media.of(5, 2, {"pixels": MediaArray("uint8", (1,), b"y")})
    kinds = [
        digests(prompt),
        digests(prompt, salt="a"),
        digests(prompt, adapter="a"),
        digests(prompt, media=(image,)),
        digests(prompt, media=(other,)),
    ]
    assert len({kind[-1] for kind in kinds}) == len(kinds)
    assert kinds[0][0] == kinds[3][0] == kinds[4][0] and kinds[3][1] != kinds[4][1]  # the image is in the second block


def test_other_processes_compute_the_same_digests() -> None:
    code = (
        "from sglang_plug import Request, prefix_digests\n"
        "request = Request(id='a', tokens=tuple(range(8)), salt='s')\n"
        "print(*prefix_digests(request, [4, 8, 12]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    assert done.stdout.split() == [str(digest) for digest in digests(tuple(range(8)), salt="s")]
