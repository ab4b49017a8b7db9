"""The components that step extensions choose for the engine while they are built."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.contracts.text.tokenizer import Tokenizer
from sglang_plug.contracts.text.vocabulary import Vocabulary
from sglang_plug.engine.loading.checkpoint_formats import Choice, tokenizer_source
from sglang_plug.engine.loading.resolve import Resolved
from sglang_plug.engine.loading.vocabulary import read_vocabulary
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.registry import Component


class ExtensionChoices:
    """Records the components that step extensions choose, and reads the vocabulary of the tokenizer among them.

    Args:
        resolved: the engine's own choices, and the folder of the tokenizer.
    """

    def __init__(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._chosen: dict[str, Choice] = {}
        self._reading = threading.Lock()
        self._vocabulary: Vocabulary | None = None

    @property
    def chosen(self) -> Mapping[str, Choice]:
        """The choices by kind."""
        return self._chosen

    @property
    def has_tokenizer(self) -> bool:
        """True if a tokenizer is chosen."""
        return "tokenizer" in self._chosen

    def choose(self, component: Component, reason: str) -> None:
        """Record the choice of a component; see ``ExtensionContext.choose``."""
        self._chosen[component.spec.kind] = Choice(component, reason)

    def make(self, component: Component, reason: str, contract: type) -> Any:
        """Record the choice of a component, and construct it; see ``ExtensionContext.make``."""
        self.choose(component, reason)
        return make_with_settings(component, contract=contract)

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, which the first call reads, in any thread. Raises ``ConfigError`` if it cannot."""
        with self._reading:
            if self._vocabulary is None:
                resolved = self._resolved
                self._vocabulary = read_vocabulary(self._tokenizer(), resolved.vocab_size, resolved.eos_token_ids)
            return self._vocabulary

    def _tokenizer(self) -> Tokenizer:
        if not self.has_tokenizer:
            raise ConfigError("no step extension has chosen a tokenizer for the engine")
        source = tokenizer_source(self._resolved.config, self._resolved.checkpoint)
        tokenizer: Tokenizer = make_with_settings(self._chosen["tokenizer"].component, source, contract=Tokenizer)
        return tokenizer
