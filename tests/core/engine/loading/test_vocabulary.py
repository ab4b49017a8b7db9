"""The model's vocabulary, as read from its tokenizer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig
from sglang_plug.engine.loading.vocabulary import VocabularyReader, read_vocabulary


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


class Loaded:
    """A tokenizer component that counts how often it is loaded."""

    spec = SimpleNamespace(target="letters:load")

    def __init__(self) -> None:
        self.loads = 0

    def load(self, base: type | None = None) -> Any:
        self.loads += 1
        return lambda source: LetterTokenizer()

    lifecycle = SimpleNamespace(add=lambda component, instance: None)

    def settings_arguments(self) -> tuple[Any, ...]:
        return ()


class LetterTokenizer(Letters):
    """A tokenizer with every member of the contract; those besides ``Letters`` do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


def resolved() -> Any:
    checkpoint = SimpleNamespace(path="/nowhere")
    return SimpleNamespace(config=EngineConfig(), checkpoint=checkpoint, vocab_size=6, eos_token_ids=(2,))


def test_the_vocabulary_is_read_once_with_the_tokenizer_that_was_chosen() -> None:
    component, choices = Loaded(), dict[str, Any]()
    reader = VocabularyReader(resolved(), choices)
    assert not reader.is_available
    with pytest.raises(ConfigError, match="no step extension has chosen a tokenizer"):
        reader()
    choices["tokenizer"] = SimpleNamespace(component=component)
    assert reader.is_available and reader() is reader()
    assert reader().stop_ids == (2, 1) and component.loads == 1
