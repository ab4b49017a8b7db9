"""The choice of the stores, and the construction of the extension that uses them."""

from __future__ import annotations

from sglang_plug import ConfigError, ExtensionContext, KVStore, KVTransferStore, ModelSpec, PrefixPool

from .extension import KVTiers
from .sending_extension import SendingKVTiers
from .tier_engine import TierEngine

NO_CACHE = "none"
BUFFERS = 2
"""Buffers of ``kv-tiers.buffer_mib``: blocks to be stored, and loaded ones whose requests wait."""


def build(context: ExtensionContext) -> KVTiers | None:
    """Return the extension if stores are named. Raises ``ConfigError`` if they cannot be used with this model."""
    names = context.config.cache.kv_stores
    if not names:
        return None
    check(context)
    components = {name: context.plugins.get("kv-store", name) for name in names}
    if len(components) < len(names):
        raise ConfigError(f"--kv-store {','.join(names)}: a store is named twice")
    stores = {
        name: context.make(component, "named by the configuration", KVStore) for name, component in components.items()
    }

    buffers = BUFFERS * (context.settings.buffer_mib << 20)

    def open_stores(prefixes: PrefixPool) -> TierEngine:
        return TierEngine.open(prefixes, stores, context.settings, context.device)

    extension = SendingKVTiers if any(isinstance(store, KVTransferStore) for store in stores.values()) else KVTiers
    return extension(open_stores, ",".join(names), buffers + sum(store.memory_bytes for store in stores.values()))


def check(context: ExtensionContext) -> None:
    """Raise ``ConfigError`` if prefixes of this model cannot be kept outside of its KV pool."""
    config, flag = context.config, f"--kv-store {','.join(context.config.cache.kv_stores)}"
    if not context.model.spec_as(ModelSpec).causal or "generate" not in context.tasks:
        raise ConfigError(f"{flag}: {context.model} has no prefix cache to extend; leave out --kv-store")
    if context.ranks.size > 1:
        raise ConfigError(f"{flag} does not work with several ranks yet; leave out --tp-size or --kv-store")
    if config.cache.prefix_cache == NO_CACHE:
        raise ConfigError(f"{flag} extends the prefix cache, which --prefix-cache none switches off")
