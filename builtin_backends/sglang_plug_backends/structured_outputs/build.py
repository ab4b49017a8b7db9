"""The choice of grammar backends, and the construction of the extension that uses them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from sglang_plug import AUTO, Component, ExtensionContext, GrammarBackend, PluginError, StepExtension

from .batch_grammars import Grammars
from .compiler import BackendCompiler, GrammarSources
from .constraints import Constraints
from .extension import StructuredOutputs, WithoutStructuredOutputs
from .grammar_backends import choose_backend, forms, installed
from .grammar_guard import GrammarGuard

NO_GRAMMARS = "none"
"""``--grammar-backend`` of a server without structured outputs."""
NOT_SUPPORTED = (
    "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported when the server is launched "
    "with --grammar-backend none or --skip-tokenizer-init"
)
START_DELAY = 5.0
"""Seconds after which the compiling process is started if no constraint has arrived. It imports torch, which would
delay the start of the server."""


@dataclass(frozen=True, slots=True)
class ChosenBackends:
    """The grammar backends of a server."""

    components: tuple[Component, ...]
    """Backends that requests may name, the chosen one first."""
    order: tuple[str, ...]
    """Names of the backends that are tried for a request that names none."""


def build(context: ExtensionContext) -> StepExtension:
    """Return the extension; one that only refuses constraints if there is no grammar backend for this server.

    Raises ``PluginError`` if the named backend, or the tokenizer that it needs, cannot be used.
    """
    chosen = choose_backends(context)
    if isinstance(chosen, str):
        return WithoutStructuredOutputs(chosen)
    config = context.config
    sources = GrammarSources(config, chosen.components, chosen.order, context.vocabulary)
    # A signal can interrupt a grammar in the main thread only.
    guard = GrammarGuard() if threading.current_thread() is threading.main_thread() else None
    return StructuredOutputs(
        Constraints(BackendCompiler(sources), forms=forms(chosen.components), start_delay=START_DELAY),
        Grammars(context.vocab_size, jump=not config.backends.disable_jump_forward, guarded=guard is not None),
        guard,
        vocab_size=context.vocab_size,
    )


def choose_backends(context: ExtensionContext) -> ChosenBackends | str:
    """Choose the grammar backend and the tokenizer that it needs; return the reason if there is none.

    Raises ``PluginError`` if a backend is named and cannot be used.
    """
    if "generate" not in context.tasks:
        return "the model does not generate"
    config, plugins, facts = context.config, context.plugins, context.facts
    name, mode = config.backends.grammar, config.model.tokenizer_mode
    if name == NO_GRAMMARS:
        return NOT_SUPPORTED
    try:
        backend, tokenizer = choose_backend(plugins, name, facts), plugins.resolve("tokenizer", mode, facts)
        if missing := tokenizer.unavailable():
            raise PluginError(f"{tokenizer} is unavailable: {missing}")
        if name != AUTO:
            backend.load(GrammarBackend)  # it is built later, by a thread: a named one must be importable now
    except PluginError as error:
        if name != AUTO:
            raise
        return f"structured outputs are not available: {error}"
    for setting, component in ((name, backend), (mode, tokenizer)):
        context.choose(component, "chosen" if setting == AUTO else "named by the configuration")
    components = installed(plugins, backend)
    tried = components if name == AUTO else components[:1]
    return ChosenBackends(components, tuple(candidate.spec.name for candidate in tried))
