"""Position ids and prefix-cache keys of prompts with images."""

from __future__ import annotations

import torch

from sglang_plug import Media, MediaArray, Request, SamplingParams
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.multimodal.layout import MediaLayout, cache_tokens

ARRAY = MediaArray("uint8", (1,), b"x")
MEDIA = (Media.of(1, 2, {"a": ARRAY}), Media.of(4, 1, {"b": ARRAY}))


def test_positions_go_on_from_the_greatest() -> None:
    rows = torch.tensor([[0, 1, 1, 2, 3], [0, 1, 2, 2, 3]])
    layout = MediaLayout([0] * 5, rows, rows[0].tolist(), -1)
    assert list(layout.positions(0, 5)) == [0, 1, 1, 2, 3]
    assert list(layout.positions(3, 8)) == [2, 3, 4, 5, 6]
    assert list(layout.positions(6, 7)) == [5]


def test_positions_are_indices_unless_the_model_defines_them() -> None:
    assert list(MediaLayout([0] * 5).positions(3, 7)) == [3, 4, 5, 6]


def test_images_that_see_each_other_are_not_cut() -> None:
    layout = MediaLayout([0] * 9, whole=(range(1, 4), range(4, 6)))
    assert [layout.chunk_end(end) for end in range(8)] == [0, 1, 4, 4, 4, 6, 6, 7]
    assert [layout.reusable(length) for length in range(8)] == [0, 1, 1, 1, 4, 4, 6, 7]
    other = MediaLayout([0] * 9)
    assert [other.chunk_end(2), other.reusable(2)] == [2, 2]


def test_keys_replace_places_of_images_only() -> None:
    request = Request(id="a", tokens=(5, 9, 9, 6, 9), media=MEDIA, params=SamplingParams(max_new_tokens=4))
    keys = cache_tokens(request)
    assert (keys[0], keys[3]) == (5, 6)
    assert keys[1:3] == MEDIA[0].keys() and keys[4:] == MEDIA[1].keys()
    sequence = Sequence.of(request, 100)
    sequence.layout = MediaLayout(keys)
    sequence.tokens += [7, 8]
    assert sequence.keys(0, 7) == [*keys, 7, 8]
    assert sequence.keys(3, 6) == [6, keys[4], 7]
    assert sequence.keys(6, 7) == [8]
    assert sequence.tokens == [5, 9, 9, 6, 9, 7, 8]


def test_keys_of_text_are_its_tokens() -> None:
    sequence = Sequence.of(Request(id="a", tokens=(1, 2, 3)), 100)
    assert sequence.keys(1, 9) == [2, 3]
