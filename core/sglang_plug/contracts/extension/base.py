"""The base class of step extensions, and the facts that they are built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from sglang_plug.config import EngineConfig
    from sglang_plug.contracts.model.recurrent_state import StateShape
    from sglang_plug.contracts.request import Request
    from sglang_plug.contracts.text.vocabulary import Vocabulary
    from sglang_plug.plugins.hookspecs import Facts
    from sglang_plug.plugins.registry import Component, Plugins

    from .views import ExtensionRanks


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionContext:
    """Facts about an engine when its step extensions are built, before the weights are loaded."""

    config: EngineConfig
    """The options in their groups: ``config.speculative.algorithm``, for instance, is ``--speculative-algorithm``."""
    plugins: Plugins
    """The plugins of this process, to choose components from: ``get``, ``all``, ``choose`` and ``resolve``."""
    facts: Facts
    """Names of device and dtype, checkpoint configuration and attention shape."""
    device: torch.device
    """This rank's device."""
    dtype: torch.dtype
    """The dtype that the model computes in."""
    model: Component
    """The chosen model, described by a ``ModelSpec``."""
    ranks: ExtensionRanks
    settings: Any
    """The extension's own settings; ``None`` if its spec declares none."""
    request_fields: Callable[[Request], Any]
    """Returns the request fields that the spec declares, with what a request gave: an instance of their class, whose
    other fields have their defaults. ``None`` if the spec declares none. A wrong value raises an error that refuses the
    request, if ``admit`` lets it pass."""
    tasks: tuple[str, ...]
    vocab_size: int
    max_running: int
    """Maximum number of sequences that run at once."""
    chunk_size: int
    """Maximum number of prompt tokens of a step."""
    states: tuple[StateShape, ...]
    """The shapes of the states that the model keeps of each sequence besides keys and values.

    They cannot be reset to an earlier token, so no drafts can be verified if there are any."""
    make: Callable[[Component, str, type], Any]
    """``make(component, reason, contract)`` constructs a component and lists it among the chosen ones of the server.

    Raises ``PluginError`` if the result does not fulfil ``contract``."""
    choose: Callable[[Component, str], None]
    """``choose(component, reason)`` lists a component among the chosen ones of the server, which the extension
    constructs later, or the engine: the tokenizer."""
    vocabulary: Callable[[], Vocabulary]
    """Returns the vocabulary of the model, read with the tokenizer that an extension chose; any thread may call it.

    The first call takes up to seconds. Raises ``ConfigError`` if there is no tokenizer."""
    describe: Callable[[BaseException, Component], str]
    """Returns an error in one line that names the component it comes from."""


class StepExtension:
    """Base class of step extensions. A subclass also inherits from the phases that it implements."""

    refusals: Mapping[str, str] = MappingProxyType({})
    """Request fields that the extension serves and refuses, because a feature is switched off, with the message."""

    def close(self) -> None:
        """Release what the extension holds; called once, when the engine ends."""
