"""The model's vocabulary, as read from its tokenizer."""

from __future__ import annotations

import pytest

from sglang_plug.engine.loading.vocabulary import read_vocabulary


class Letters:
    """A tokenizer in which token ``i`` is a letter, except for the first two tokens."""

    vocab_size = 6
    eos_token_ids = (1, 2)
    special_token_ids = frozenset({0, 1})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(letter) - 96 for letter in text]

    def piece_bytes(self, token: int) -> bytes:
        return b"<s>" if token < 2 else bytes([96 + token])

    def piece(self, token: int) -> str:
        return f"<{token}>"


@pytest.mark.parametrize(("size", "letters"), [(6, 4), (9, 4), (4, 2)])
def test_the_vocabulary_is_as_wide_as_the_models(size: int, letters: int) -> None:
    vocabulary = read_vocabulary(Letters(), size, (2, 5))  # type: ignore[arg-type]
    assert list(vocabulary.pieces) == [
        b"",
        b"",
        *[bytes([98 + index]) for index in range(letters)],
        *[b""] * (size - letters - 2),
    ]
    assert (vocabulary.size, vocabulary.words, vocabulary.stop_ids) == (size, 1, (2, 5, 1))
    assert vocabulary.special == {"<0>": 0, "<1>": 1}
