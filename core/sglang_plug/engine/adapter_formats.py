"""Reading an adapter's folder with whichever format knows it."""

from __future__ import annotations

from sglang_plug.adapters import Adapter, AdapterReader, AdapterRequest, LayerAdapter
from sglang_plug.attribution import attributed, check_contract
from sglang_plug.config import ConfigError
from sglang_plug.discovery import DISTRIBUTION
from sglang_plug.plugins import Component, PluginError, Plugins

from .adapters import Adapters, ReadAdapter
from .memory import is_out_of_memory
from .resolve import Resolved


def build_adapters(resolved: Resolved, plugins: Plugins) -> Adapters | None:
    """Where requests' adapters will be kept, none of them loaded yet; ``None`` if adapters are not enabled.

    Raises ``ConfigError`` if the model cannot be served with some.
    """
    options = resolved.config.adapters
    if not (options.enabled or options.paths):
        return None
    if not resolved.causal:
        raise ConfigError(f"{resolved.choices['model'].component} is an encoder, which takes no adapters yet")
    if options.most_in_step < 1:
        raise ConfigError(f"--max-loras-per-batch must be at least 1, got {options.most_in_step}")
    return Adapters(adapter_reader(plugins), device=resolved.device, dtype=resolved.dtype, most=options.most_loaded)


def adapter_reader(plugins: Plugins) -> ReadAdapter:
    """Asks every available format of adapters, those of other distributions first.

    Raises ``ConfigError`` if there is none, ``PluginError`` if one cannot be imported.
    """
    known = sorted(plugins.all("adapter"), key=lambda one: one.found.distribution == DISTRIBUTION)
    usable = [one for one in known if not one.unavailable()]
    if not usable:
        missing = "; ".join(f"{one} is unavailable: {one.unavailable()}" for one in known)
        raise ConfigError(f"no plugin declares a format of adapters{': ' * bool(missing)}{missing}")
    readers: list[tuple[Component, AdapterReader]] = [(one, one.load()) for one in usable]
    settings = {one.key: one.settings() for one in usable}

    def read(request: AdapterRequest) -> Adapter:
        for component, reader in readers:
            with attributed(component, f"to read {request.path}", passes=is_out_of_memory):
                found = reader(request, settings[component.key])
            if found is not None:
                _check(component, found, request)
                return found
        names = ", ".join(component.spec.name for component, _ in readers)
        raise ConfigError(f"{request.path} holds no adapter of a known format ({names})")

    return read


def _check(component: Component, found: Adapter, request: AdapterRequest) -> None:
    """Raises ``PluginError`` if an adapter is not what it should be, or changes layers that there are not."""
    check_contract(component, found, Adapter)
    layers = {one.name for one in request.layers}
    for name, layer in found.layers.items():
        if name not in layers:
            raise PluginError(f"{component} gave an adapter for {name!r}, which is no layer that it was told of")
        if not isinstance(layer, LayerAdapter):
            raise PluginError(f"{component} gave {type(layer).__name__} instead of LayerAdapter for {name!r}")
    if not found.layers:
        raise ConfigError(f"the adapter in {request.path} changes no layer")
