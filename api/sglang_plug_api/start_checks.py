"""What needs no model is told before one is loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_plug import AUTO, ConfigError
from sglang_plug.config import ModelOptions

from .batches.storage import folder_of
from .config import ServerConfig
from .image_sources import ImageSources

logger = logging.getLogger(__name__)


def check_paths(config: ServerConfig) -> None:
    """Raises ``ConfigError`` for a file or a folder that was named and cannot be used.

    Warns of a revision that nothing will come of.
    """
    _check_revision(config.engine.model)
    for folder in config.allow_update_from:
        if not Path(folder).is_dir():
            raise ConfigError(f"--allow-update-from {folder!r} is not a folder, so nothing could be read below it")
    tokenizer = config.engine.model.tokenizer_path
    if tokenizer is not None and not Path(tokenizer).is_dir():
        raise ConfigError(f"--tokenizer-path {tokenizer!r} is not a folder")
    template = config.chat_template
    if template is not None and not {"{", "\n"} & set(template) and not Path(template).expanduser().is_file():
        raise ConfigError(f"--chat-template {template!r} is neither a Jinja template nor a file")
    storage = config.storage.file_storage_path
    if storage is not None and not _can_write(folder_of(config.storage)):
        raise ConfigError(f"--file-storage-path {storage!r} is not a folder that this user may write to or make")


def image_sources(config: ServerConfig) -> ImageSources:
    """Where images may come from. Raises ``ConfigError`` for hosts, ranges or a folder that cannot be."""
    return ImageSources(config.media_sources, each=config.media.bytes, total=config.max_request_bytes)


def check_media_processor(config: ServerConfig, info: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` if one was named for a model that takes text only; ``info`` is the engine's."""
    name = config.engine.model.media_processor
    if name != AUTO and "image" not in info.get("inputs", ()):
        raise ConfigError(
            f"--media-processor {name!r} has nothing to do: {info['architecture']} takes text only; leave it out"
        )


def _check_revision(model: ModelOptions) -> None:
    if model.revision is None:
        return
    if model.path == AUTO:
        logger.warning("--revision %s changes nothing: there is no --model-path to take it of", model.revision)
    elif Path(model.path).is_dir():
        logger.warning(
            "--revision %s changes nothing: --model-path %s is a local folder, which is served as it is",
            model.revision,
            model.path,
        )


def _can_write(folder: Path) -> bool:
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
