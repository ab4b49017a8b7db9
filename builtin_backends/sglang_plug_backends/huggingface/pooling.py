"""How a sentence-transformers checkpoint turns a text's hidden states into one vector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from sglang_plug import ConfigError, Pooling

Mode = Literal["last", "mean", "cls"]
MODES: Mapping[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
NAMES: Mapping[str, Mode] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
"""Newer files name the mode."""


def read_pooling(folder: Path) -> Pooling | None:
    """What ``modules.json`` and the files it names say; ``None`` if the folder has none.

    Raises ``ConfigError`` for modules that are not supported.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return None
    modules = _read(file)
    mode: Mode | None = None
    normalize = False
    for module in modules if isinstance(modules, list) else ():
        match str(module.get("type", "")).rpartition(".")[2]:
            case "Pooling":
                mode = _mode(folder / str(module.get("path", "")) / "config.json")
            case "Normalize":
                normalize = True
            case "Transformer":
                pass
            case other:
                raise ConfigError(f"{file} uses a module of type {other!r}, which is not supported")
    return None if mode is None else Pooling(mode=mode, normalize=normalize)


def _mode(file: Path) -> Mode:
    values = _read(file)
    named = values.get("pooling_mode")
    if isinstance(named, str) and named in NAMES:
        return NAMES[named]
    chosen = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in MODES:
        wanted = ", ".join(chosen) or "no pooling"
        raise ConfigError(f"{file} asks for {wanted}; supported is one of {', '.join(MODES)}")
    return MODES[chosen[0]]


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
