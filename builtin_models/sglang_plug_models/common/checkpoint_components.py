"""Transformers' components of checkpoints for media processors. Not a plugin; needs transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from transformers import AutoImageProcessor

from sglang_plug import ConfigError, MediaSource


def from_checkpoint(source: MediaSource, *kinds: Any) -> list[Any]:
    """Load the transformers classes ``kinds`` from the checkpoint at ``source``; Pillow prepares images.

    Raises ``ConfigError`` if files are missing or say nothing of use.
    """
    try:
        return [kind.from_pretrained(source.path, local_files_only=True, **_options(kind)) for kind in kinds]
    except (OSError, ValueError) as error:
        raise _unsaid(source, error) from error


def read_json_file(source: MediaSource, file: str) -> Mapping[str, Any]:
    """Read a JSON file of the checkpoint; empty if it is missing. Raises ``ConfigError`` if it is invalid."""
    path = source.path / file
    if not path.is_file():
        return {}
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unsaid(source, error) from error
    return result if isinstance(result, dict) else {}


def _unsaid(source: MediaSource, error: Exception) -> ConfigError:
    return ConfigError(f"{source.path} does not say how images are prepared: {str(error)[:200]}")


def _options(kind: Any) -> dict[str, str]:
    return {"backend": "pil"} if kind is AutoImageProcessor else {}
