"""Loading of the tokenizer, in parallel with the engine's start where its folder is known."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_plug import AUTO, ConfigError, Facts, Plugins, Tokenizer, TokenizerSource
from sglang_plug.plugins.attribution import make
from sglang_plug.plugins.registry import Component
from sglang_plug.system.gc_control import collecting_later
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.text.guarded_tokenizer import GuardedTokenizer

logger = logging.getLogger(__name__)


class EarlyTokenizer:
    """Imports the tokenizer's code in a thread, and loads the tokenizer if it is in a local folder.

    Both take seconds, as the engine's start does; and errors show before a large model is loaded.
    """

    def __init__(self, config: ServerConfig, plugins: Plugins) -> None:
        self._error: ConfigError | None = None
        self._config, self._plugins = config, plugins
        self._loaded: tuple[Component, TokenizerSource, Tokenizer] | None = None
        self._thread = threading.Thread(target=self._load, name="tokenizer", daemon=True)

    def start(self) -> None:
        """Start the thread, unless the server runs without a tokenizer."""
        if not self._config.skip_tokenizer_init:
            self._thread.start()

    @property
    def is_loading(self) -> bool:
        """True until loading has succeeded or failed."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise ``ConfigError`` if the tokenizer cannot be loaded."""
        if self._error is not None:
            raise self._error

    def get(self, component: Component, source: TokenizerSource) -> Tokenizer | None:
        """Return the tokenizer that ``component`` made of ``source``, or ``None`` if another one was loaded."""
        if self._loaded is None or self._loaded[:2] != (component, source):
            return None
        return self._loaded[2]

    def _load(self) -> None:
        model = self._config.engine.model
        try:
            component = self._plugins.resolve("tokenizer", model.tokenizer_mode, Facts())
            component.load()
        except ConfigError as error:
            if model.tokenizer_mode != AUTO:  # an automatic choice may depend on facts that only the engine knows
                self._error = error
            return
        folder = model.tokenizer_path or (model.path if model.path != AUTO else None)
        if folder is None or not Path(folder).is_dir():
            return
        source = TokenizerSource(path=Path(folder), chat_template=self._config.chat_template)
        try:
            with collecting_later():
                self._loaded = component, source, _make(component, source)
        except ConfigError as error:
            self._error = error


def load_tokenizer(
    config: ServerConfig, plugins: Plugins, info: Mapping[str, Any], early: EarlyTokenizer | None = None
) -> Tokenizer:
    """Return the tokenizer of the model. Raises ``ConfigError``."""
    component = plugins.resolve("tokenizer", config.engine.model.tokenizer_mode, Facts(device=str(info["device"])))
    path = Path(config.engine.model.tokenizer_path or info["checkpoint_path"])
    if not path.is_dir():
        raise ConfigError(f"--tokenizer-path {str(path)!r} is not a folder")
    source = TokenizerSource(path=path, chat_template=config.chat_template)
    loaded = early.get(component, source) if early is not None else None
    tokenizer = _make(component, source) if loaded is None else loaded
    if tokenizer.vocab_size > info["vocab_size"]:
        logger.warning(
            "the tokenizer has %d tokens, the model only %d; tokens beyond are refused",
            tokenizer.vocab_size,
            info["vocab_size"],
        )
    return tokenizer


def _make(component: Component, source: TokenizerSource) -> Tokenizer:
    tokenizer: Tokenizer = make(component, source, contract=Tokenizer)
    return GuardedTokenizer(tokenizer, str(component))
