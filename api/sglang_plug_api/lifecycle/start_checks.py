"""Checks of the configuration that need no model, made before one is loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_plug import AUTO, ConfigError, Plugins
from sglang_plug.config import ModelOptions
from sglang_plug_api.multimodal.image_sources import ImageSources
from sglang_plug_api.options.config import NO_PARSER, ServerConfig
from sglang_plug_api.stores.sqlite.folder import check_owner, folder_of

logger = logging.getLogger(__name__)


def check_paths(config: ServerConfig) -> None:
    """Raise ``ConfigError`` for unusable files and folders, and for an option that needs another one.

    Warns if ``--revision`` has no effect.
    """
    _check_revision(config.engine.model)
    if config.tenant_isolation and not config.api_keys:
        raise ConfigError("--tenant-isolation tells callers apart by their keys; set them with --api-key")
    for folder in config.allow_update_from:
        if not Path(folder).is_dir():
            raise ConfigError(f"--allow-update-from {folder!r} is not a folder, so nothing could be read below it")
    tokenizer = config.engine.model.tokenizer_path
    if tokenizer is not None and not Path(tokenizer).exists():
        raise ConfigError(f"--tokenizer-path {tokenizer!r}: there is no such folder or file")
    for entry in config.engine.adapters.paths:
        folder = entry.partition("=")[2] if "=" in entry else entry
        if not Path(folder).is_dir():
            raise ConfigError(f"--lora-paths {entry}: there is no folder {folder!r}")
    template = config.chat_template
    if template is not None and not {"{", "\n"} & set(template) and not Path(template).expanduser().is_file():
        raise ConfigError(f"--chat-template {template!r} is neither a Jinja template nor a file")
    storage = config.storage.file_storage_path
    if storage is not None and not _can_write(folder_of(storage)):
        raise ConfigError(f"--file-storage-path {storage!r} is not a folder that this user may write to or make")
    if storage is not None:
        check_owner(folder_of(storage))


def check_names(config: ServerConfig, plugins: Plugins) -> None:
    """Raise ``ConfigError`` for a component of this process that no plugin declares, or that cannot be imported.

    Also if its settings do not fit. Tokenizers are imported by ``EarlyTokenizer``, which takes seconds.
    """
    model = config.engine.model
    named = {
        "tokenizer": model.tokenizer_mode,
        "media-processor": model.media_processor,
        "tool-parser": config.tool_call_parser,
        "reasoning-parser": config.reasoning_parser,
        "store": config.store,
    }
    for kind, name in named.items():
        if name not in (AUTO, NO_PARSER):
            component = plugins.get(kind, name)
            if kind != "tokenizer":
                component.check()
    for name in plugins.names("route"):
        plugins.get("route", name).check()


def image_sources(config: ServerConfig) -> ImageSources:
    """Return the configured image sources. Raises ``ConfigError`` for invalid hosts, ranges or folders."""
    return ImageSources(config.media_sources, per_file=config.media.bytes, total=config.max_request_bytes)


def check_media_processor(config: ServerConfig, info: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if a processor was chosen for a model that takes text only; ``info`` is the engine's."""
    name = config.engine.model.media_processor
    if name != AUTO and "image" not in info.get("inputs", ()):
        raise ConfigError(
            f"--media-processor {name!r} has nothing to do: {info['architecture']} takes text only; leave it out"
        )


def _check_revision(model: ModelOptions) -> None:
    if model.revision is None:
        return
    if model.path == AUTO:
        logger.warning("--revision %s has no effect: there is no --model-path that it belongs to", model.revision)
    elif Path(model.path).is_dir():
        logger.warning(
            "--revision %s has no effect: --model-path %s is a local folder, which is served as it is",
            model.revision,
            model.path,
        )


def _can_write(folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
