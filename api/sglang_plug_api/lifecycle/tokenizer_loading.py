"""Loading of the tokenizer, in parallel with the engine's start where its folder is known."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_plug import AUTO, ConfigError, Facts, Plugins, Tokenizer, TokenizerSource
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.registry import Component
from sglang_plug.system.gc_control import gc_paused
from sglang_plug_api.options.config import ServerConfig

from .guarded_tokenizer import GuardedTokenizer

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
        """Start the thread."""
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
        source = None
        try:
            path = model.tokenizer_path or self._model_path()
            if path is not None and Path(path).is_dir():  # the reader of a checkpoint in a file knows its tokenizer
                source = TokenizerSource(path=Path(path), chat_template=self._config.chat_template)
            facts = _facts(self._config, source) if source is not None else Facts()
            component = self._plugins.resolve("tokenizer", model.tokenizer_mode, facts)
            component.check()
        except ConfigError as error:
            if model.tokenizer_mode != AUTO:  # an automatic choice may depend on facts that only the engine knows
                self._error = error
            return
        if source is None:
            return
        try:
            with gc_paused():
                self._loaded = component, source, _make(component, source)
        except ConfigError as error:
            self._error = error

    def _model_path(self) -> str | None:
        """Return the model that the engine will most likely choose too; it may know more of the device."""
        path = self._config.engine.model.path
        return path if path != AUTO else self._plugins.choose("model-path", Facts())


def load_tokenizer(
    config: ServerConfig, plugins: Plugins, info: Mapping[str, Any], early: EarlyTokenizer | None = None
) -> Tokenizer:
    """Return the tokenizer of the model. Raises ``ConfigError``."""
    path = Path(config.engine.model.tokenizer_path or info["checkpoint_path"])
    if config.engine.model.tokenizer_path and not path.exists():
        raise ConfigError(f"--tokenizer-path {str(path)!r}: there is no such folder or file")
    source = TokenizerSource(path=path, chat_template=config.chat_template)
    facts = _facts(config, source, str(info["device"]))
    component = plugins.resolve("tokenizer", config.engine.model.tokenizer_mode, facts)
    loaded = early.get(component, source) if early is not None else None
    tokenizer = _make(component, source) if loaded is None else loaded
    if tokenizer.vocab_size > info["vocab_size"]:
        logger.warning(
            "the tokenizer has %d tokens, the model only %d; tokens beyond are refused",
            tokenizer.vocab_size,
            info["vocab_size"],
        )
    return tokenizer


def _facts(config: ServerConfig, source: TokenizerSource, device: str = "cpu") -> Facts:
    return Facts(device=device, source=config.engine.model.path, subjects={"tokenizer": source})


def _make(component: Component, source: TokenizerSource) -> Tokenizer:
    tokenizer: Tokenizer = make_with_settings(component, source, contract=Tokenizer)
    return GuardedTokenizer(tokenizer, str(component))
