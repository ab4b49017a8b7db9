"""The vocabulary of the model, read with the tokenizer component."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial

from sglang_plug.config import ConfigError
from sglang_plug.contracts.text.tokenizer import Tokenizer
from sglang_plug.contracts.text.vocabulary import Vocabulary
from sglang_plug.plugins.attribution import make_with_settings

from .checkpoint_formats import Choice, tokenizer_source
from .resolve import Resolved


class VocabularyReader:
    """Reads the vocabulary when it is first called, in any thread, and keeps it.

    Args:
        resolved: names the tokenizer's folder.
        choices: where the tokenizer is found by then.
    """

    def __init__(self, resolved: Resolved, choices: Mapping[str, Choice]) -> None:
        self._resolved = resolved
        self._choices = choices
        self._reading = threading.Lock()
        self._vocabulary: Vocabulary | None = None

    @property
    def is_available(self) -> bool:
        """True if a tokenizer is chosen."""
        return "tokenizer" in self._choices

    def __call__(self) -> Vocabulary:
        """Return the vocabulary. Raises ``ConfigError`` if it cannot be read."""
        with self._reading:
            if self._vocabulary is None:
                resolved = self._resolved
                self._vocabulary = read_vocabulary(self._tokenizer(), resolved.vocab_size, resolved.eos_token_ids)
            return self._vocabulary

    def _tokenizer(self) -> Tokenizer:
        if not self.is_available:
            raise ConfigError("no step extension has chosen a tokenizer for the engine")
        component = self._choices["tokenizer"].component
        source = tokenizer_source(self._resolved.config, self._resolved.checkpoint)
        tokenizer: Tokenizer = make_with_settings(component, source, contract=Tokenizer)
        return tokenizer


def read_vocabulary(tokenizer: Tokenizer, size: int, stop_ids: tuple[int, ...]) -> Vocabulary:
    """Read the vocabulary of a model with ``size`` token ids; ids that the tokenizer lacks have no text."""
    special, known = tokenizer.special_token_ids, min(size, tokenizer.vocab_size)
    pieces = [b"" if token in special else tokenizer.piece_bytes(token) for token in range(known)]
    pieces += [b""] * (size - known)
    stops = tuple(dict.fromkeys((*stop_ids, *tokenizer.eos_token_ids)))
    names = {tokenizer.piece(token): token for token in sorted(special) if token < known}
    return Vocabulary(pieces, stops, names, partial(tokenizer.encode, special=False))
