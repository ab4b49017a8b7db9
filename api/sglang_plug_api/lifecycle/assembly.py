"""The parts of a server behind its routes: the started engine, and the text side made for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_plug import EngineClient, Facts, MediaProcessor, MediaSource, Observer, ObserverSpec, Plugins
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.installed.fingerprint import check_engine_plugins
from sglang_plug.system.freed_memory import return_large_blocks
from sglang_plug_api.multimodal.image_prompts import ImagePrompts
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.options.request_fields import request_fields
from sglang_plug_api.service.server_state import ServerState
from sglang_plug_api.stores.storage import load_storage
from sglang_plug_api.text.parsers import load_parsers
from sglang_plug_api.text.server_facts import ServerFacts
from sglang_plug_api.text.text_engine import TextEngine

from .plugin_table import plugin_table
from .start_checks import check_media_processor, image_sources
from .tokenizer_loading import EarlyTokenizer, load_tokenizer

POLL = 0.05


async def start_engine(client: EngineClient, early: EarlyTokenizer | None) -> Mapping[str, Any]:
    """Start the engine and load the tokenizer meanwhile, if it may be; return the engine's description of itself.

    Raises ``ConfigError`` if either fails, without waiting for the other one, and ``EngineError``.
    """
    if early is None:  # two threads that import the same libraries would meet unfinished modules
        return await client.start()
    early.start()
    starting = asyncio.create_task(client.start(), name="engine client")
    try:
        while not starting.done():
            early.check()
            await asyncio.wait((starting,), timeout=POLL)
        info = starting.result()
        while early.is_loading:  # polled: a thread that waits for it would keep a stopped server from ending
            await asyncio.sleep(POLL)
        early.check()
        return info
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


def assemble(
    config: ServerConfig,
    plugins: Plugins,
    client: EngineClient,
    info: Mapping[str, Any],
    *,
    warming_up: bool = False,
    early: EarlyTokenizer | None = None,
    observers: Mapping[str, Observer] | None = None,
) -> TextEngine:
    """Build the text side of a started engine: tokenizer, observers, plugin table; parts made earlier are reused.

    With ``warming_up``, the server is not ready before its own first request has ended. Raises ``ConfigError`` if the
    engine has other plugins than this process.
    """
    check_engine_plugins(plugins.fingerprint, info)
    tokenizer = None if config.skip_tokenizer_init else load_tokenizer(config, plugins, info, early)
    observers = load_observers(config, plugins) if observers is None else observers
    parsers = load_parsers(config, plugins, tokenizer)
    table = plugin_table(plugins)
    image_prompts = load_image_prompts(config, plugins, info)
    storage = load_storage(config, plugins)
    state = ServerState(weight_version=config.weight_version, warming_up=warming_up)
    return TextEngine(
        config,
        client,
        info,
        tokenizer,
        server=ServerFacts(state=state, storage=storage, observers=observers, plugins=table),
        parsers=parsers,
        image_prompts=image_prompts,
        request_fields=request_fields(plugins),
    )


async def start_components(engine: TextEngine, plugins: Plugins) -> None:
    """Start the components of this process that hold resources. Raises ``PluginError`` for one that fails."""
    interval = engine.config.engine.schedule.log_interval
    await plugins.lifecycle.start_async(
        {**engine.info, "served_model_name": engine.model_name, "log_interval": interval}
    )
    for observer in engine.reports.observers:
        engine.client.on_step(observer.on_step)


def load_image_prompts(config: ServerConfig, plugins: Plugins, info: Mapping[str, Any]) -> ImagePrompts | None:
    """Return the maker of prompts with images, if the model takes images. Raises ``ConfigError``."""
    check_media_processor(config, info)
    if "image" not in info.get("inputs", ()):
        return None
    model = SimpleNamespace(architectures=[info["architecture"]], model_type=info["model_type"])
    facts = Facts(device=str(info["device"]), model=model)
    component = plugins.resolve("media-processor", config.engine.model.media_processor, facts)
    source = MediaSource(path=Path(info["checkpoint_path"]), limits=config.media)
    processor: MediaProcessor = make_with_settings(component, source, contract=MediaProcessor)
    return_large_blocks()
    return ImagePrompts(processor, config.media, image_sources(config))


def load_observers(config: ServerConfig, plugins: Plugins) -> dict[str, Observer]:
    """Load every observer that is on by default or chosen. Raises ``ConfigError``."""
    for name in config.observers:
        plugins.get("observer", name)
    observers: dict[str, Observer] = {}
    for name in plugins.names("observer"):
        component = plugins.get("observer", name)
        if component.spec_as(ObserverSpec).enabled or name in config.observers:
            observers[name] = make_with_settings(component, base=Observer)
    return observers
