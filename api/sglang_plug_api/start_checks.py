"""What needs no model is told before one is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from sglang_plug import ConfigError

from .batches.storage import folder_of
from .config import ServerConfig
from .image_sources import ImageSources


def check_paths(config: ServerConfig) -> None:
    """Raises ``ConfigError`` for a file or a folder that was named and cannot be used."""
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


def _can_write(folder: Path) -> bool:
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
