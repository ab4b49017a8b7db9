"""Information about the model, the server and the plugins."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from sglang_plug import PluginOptions, __version__
from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.options.hidden_values import shown
from sglang_plug_api.options.option_table import options
from sglang_plug_api.options.option_values import option_values
from sglang_plug_api.options.parsing import NO_PREFIX_CACHE
from sglang_plug_api.text.text_engine import TextEngine

logger = logging.getLogger(__name__)

DEPRECATED = "Endpoint '/get_%s' is deprecated and will be removed in a future version. Please use '/%s' instead."


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    @router.get("/model_info", summary="The model")
    async def model_info() -> Response:
        return json_response({**_basic(engine), **_details(engine)})

    @router.get("/get_model_info", summary="The model, in exactly the keys of earlier servers", deprecated=True)
    async def get_model_info() -> Response:
        logger.warning(DEPRECATED, "model_info", "model_info")
        return json_response(_basic(engine))

    @router.get("/server_info", summary="Configuration, limits, components and plugins")
    async def server_info() -> Response:
        return json_response(await _server_info(engine))

    @router.get("/get_server_info", summary="As /server_info", deprecated=True)
    async def get_server_info() -> Response:
        logger.warning(DEPRECATED, "server_info", "server_info")
        return json_response(await _server_info(engine))

    @router.get("/version", summary="The version of the server")
    async def version() -> Response:
        return json_response({"version": __version__})

    @router.get("/plugins", summary="Plugins and what they declare")
    async def plugins() -> Response:
        return json_response(engine.server.plugins)

    return router


def _basic(engine: TextEngine) -> dict[str, Any]:
    info, config = engine.info, engine.config
    return {
        "model_path": info["model_path"],
        "tokenizer_path": config.engine.model.tokenizer_path or info["model_path"],
        "is_generation": "generate" in info["tasks"],
        "preferred_sampling_params": dict(config.preferred_sampling_params) or None,
        "weight_version": engine.server.state.weight_version,
        "has_image_understanding": engine.supports_images,
        "has_audio_understanding": False,
        "model_type": info["model_type"],
        "architectures": [info["architecture"]],
    }


def _details(engine: TextEngine) -> dict[str, Any]:
    info = engine.info
    return {
        "served_model_name": engine.model_name,
        "tasks": info["tasks"],
        "context_length": info["context_length"],
        "vocab_size": info["vocab_size"],
        "dtype": info["dtype"],
        "device": info["device"],
    }


async def _server_info(engine: TextEngine) -> dict[str, Any]:
    """Return one flat object: options under their names, then limits, load, components and plugins."""
    live = await engine.client.control("info")
    return {
        "version": __version__,
        **option_values(engine.config),
        **live,
        **_component_options(live["components"]),
        "tokenizer_path": _basic(engine)["tokenizer_path"],
        "served_model_name": engine.model_name,
        "weight_version": engine.server.state.weight_version,
        "is_embedding": "generate" not in live["tasks"],
        "enable_metrics": True,
        "startup_time": engine.server.state.startup_time,
        "file_storage": engine.server.storage.status(),
        "max_total_num_tokens": live["max_total_tokens"],
        "plugin_options": _plugin_options(engine.config.engine.plugins),
        "plugins": engine.server.plugins,
    }


def _plugin_options(options: PluginOptions) -> dict[str, Any]:
    """Return the options of plugins, without passwords in their settings."""
    settings = {
        component: {key: shown(key, value) for key, value in values.items()}
        for component, values in options.settings.items()
    }
    return {**dataclasses.asdict(options), "settings": settings}


def _component_options(components: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options that name a component, with the component in use, and the options that depend on them."""
    kinds = {option.key: option.component for option in options() if option.component is not None}
    names = {key: components[kind]["name"] for key, kind in kinds.items() if kind in components}
    return {**names, "disable_radix_cache": names.get("prefix_cache") == NO_PREFIX_CACHE}
