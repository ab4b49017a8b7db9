"""Reading an adapter's folder with the first format that recognises it."""

from __future__ import annotations

from sglang_plug import (
    Adapter,
    AdapterReader,
    AdapterRequest,
    Component,
    ConfigError,
    LayerAdapter,
    PluginError,
    Plugins,
    attributed,
    is_out_of_memory,
)

from .adapters import ReadAdapter

BUILT_IN = "sglang-plug"
"""The distribution of the formats that are tried last."""


def adapter_reader(plugins: Plugins) -> ReadAdapter:
    """Return a reader that tries every available adapter format, those of other distributions first.

    Raises ``ConfigError`` if there is none, ``PluginError`` if one cannot be imported.
    """
    known = sorted(plugins.all("adapter"), key=lambda component: component.plugin.distribution == BUILT_IN)
    usable = [component for component in known if not component.unavailable()]
    if not usable:
        missing = "; ".join(f"{component} is unavailable: {component.unavailable()}" for component in known)
        raise ConfigError(f"no plugin declares a format of adapters{': ' * bool(missing)}{missing}")
    readers: list[tuple[Component, AdapterReader]] = [(component, component.load()) for component in usable]
    settings = {component.key: component.settings() for component in usable}

    def read(request: AdapterRequest) -> Adapter:
        for component, reader in readers:
            with attributed(component, f"to read {request.path}", passes=is_out_of_memory):
                adapter = reader(request, settings[component.key])
            if adapter is not None:
                _check(component, adapter, request)
                return adapter
        names = ", ".join(component.spec.name for component, _ in readers)
        raise ConfigError(f"{request.path} holds no adapter of a known format ({names})")

    return read


def _check(component: Component, adapter: object, request: AdapterRequest) -> None:
    """Raise ``PluginError`` if an adapter violates its contract, or changes layers that do not exist."""
    if not isinstance(adapter, Adapter):
        raise PluginError(f"{component} returned {type(adapter).__name__} instead of Adapter")
    layers = {layer.name for layer in request.layers}
    for name, layer in adapter.layers.items():
        if name not in layers:
            raise PluginError(
                f"{component} returned an adapter for {name!r}, which is not among the layers of the request"
            )
        if not isinstance(layer, LayerAdapter):
            raise PluginError(f"{component} returned {type(layer).__name__} instead of LayerAdapter for {name!r}")
    if not adapter.layers:
        raise ConfigError(f"the adapter in {request.path} changes no layer")
