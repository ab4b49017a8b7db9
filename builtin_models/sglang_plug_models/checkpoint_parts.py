"""What transformers makes of a checkpoint's files, for media processors. Not a plugin; needs transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from transformers import AutoImageProcessor

from sglang_plug import ConfigError, MediaSource


def from_checkpoint(source: MediaSource, *kinds: Any) -> list[Any]:
    """What each of transformers' classes ``kinds`` loads from the checkpoint at ``source``, images prepared by Pillow.

    Raises ``ConfigError`` if files are missing or say nothing of use.
    """
    try:
        return [kind.from_pretrained(source.path, local_files_only=True, **_options(kind)) for kind in kinds]
    except (OSError, ValueError) as error:
        raise _unsaid(source, error) from error


def stated(source: MediaSource, file: str) -> Mapping[str, Any]:
    """What a JSON file of the checkpoint says; empty without it. Raises ``ConfigError`` if it cannot be read."""
    path = source.path / file
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unsaid(source, error) from error
    return found if isinstance(found, dict) else {}


def _unsaid(source: MediaSource, error: Exception) -> ConfigError:
    return ConfigError(f"{source.path} does not say how images are prepared: {str(error)[:200]}")


def _options(kind: Any) -> dict[str, str]:
    return {"backend": "pil"} if kind is AutoImageProcessor else {}
