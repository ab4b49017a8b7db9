"""The components that step extensions choose, and the vocabulary of the tokenizer among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig
from sglang_plug.engine.extensions.choices import ExtensionChoices


class Loaded:
    """A tokenizer component that counts how often it is loaded."""

    spec = SimpleNamespace(kind="tokenizer", target="letters:load")
    lifecycle = SimpleNamespace(add=lambda component, instance: None)

    def __init__(self) -> None:
        self.loads = 0

    def load(self, base: type | None = None) -> Any:
        self.loads += 1
        return lambda source: LetterTokenizer()

    def settings_arguments(self) -> tuple[Any, ...]:
        return ()


class LetterTokenizer:
    """A tokenizer with every member of the contract; the others do nothing."""

    vocab_size = 6
    eos_token_ids = (1, 2)
    special_token_ids = frozenset({0, 1})

    def piece_bytes(self, token: int) -> bytes:
        return bytes([96 + token])

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None


def resolved() -> Any:
    checkpoint = SimpleNamespace(path="/nowhere")
    return SimpleNamespace(config=EngineConfig(), checkpoint=checkpoint, vocab_size=6, eos_token_ids=(2,))


def test_the_vocabulary_is_read_once_with_the_tokenizer_that_was_chosen() -> None:
    component, choices = Loaded(), ExtensionChoices(resolved())
    assert not choices.has_tokenizer
    with pytest.raises(ConfigError, match="no step extension has chosen a tokenizer"):
        choices.vocabulary()
    choices.choose(component, "it is the only one")  # type: ignore[arg-type]
    assert choices.has_tokenizer and choices.vocabulary() is choices.vocabulary()
    assert choices.vocabulary().stop_ids == (2, 1) and component.loads == 1
    assert choices.chosen["tokenizer"].reason == "it is the only one"
