"""Digests and cache keys of media."""

from __future__ import annotations

from itertools import combinations

from sglang_plug import Media, MediaArray

ARRAY = MediaArray("float32", (2, 1), b"\0" * 8)


def test_the_digest_differs_where_the_content_does() -> None:
    different = [
        {"a": ARRAY},
        {"b": ARRAY},
        {"a": MediaArray("float32", (1, 2), ARRAY.data)},
        {"a": MediaArray("int32", (2, 1), ARRAY.data)},
        {"a": MediaArray("float32", (2, 1), b"\1" + b"\0" * 7)},
        {"a": ARRAY, "b": ARRAY},
        {},
    ]
    for first, second in combinations(different, 2):
        assert Media.of(3, 2, first).digest != Media.of(3, 2, second).digest
    assert Media.of(3, 2, {"a": ARRAY, "b": ARRAY}).digest == Media.of(7, 2, {"b": ARRAY, "a": ARRAY}).digest


def test_keys_are_outside_the_vocabulary_and_tell_positions_and_contents_apart() -> None:
    media, other_media = Media.of(0, 50, {"a": ARRAY}), Media.of(9, 50, {"b": ARRAY})
    keys = media.keys()
    assert len(keys) == 50 and max(keys) < 0 and min(keys) >= -(1 << 63)
    assert len({*keys, *other_media.keys()}) == 100
    assert keys == Media.of(4, 50, {"a": ARRAY}).keys()


def test_extent() -> None:
    media = Media.of(3, 4, {"a": ARRAY, "b": ARRAY})
    assert (media.end, media.size) == (7, 16)
