"""Opening of a checkpoint: find its folder and read its configuration; weights stay on disk."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import huggingface_hub

from sglang_plug import Checkpoint, CheckpointNotFoundError, CheckpointRequest, ConfigError
from sglang_plug_backends.checkpoint_files import MAX_CONFIG, MAX_INDEX, check_folder, read_file

from .config_classes import config_class
from .config_limits import check_against_files, check_config
from .kv_cache import keeps_weights_alone, kv_scale, read_kv_dtype
from .pooling import read_pooling

TEXT_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
"""Files fetched from the hub besides the weights: configurations, vocabularies, templates. Never pickles or code."""
WEIGHT_FILES = ["*.safetensors"]
OTHER_FORMATS = ["original/*", "onnx/*", "openvino/*", "gguf/*", "consolidated*"]
"""Copies of the same model in other formats, which some repositories contain."""
SPECIAL_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def open_checkpoint(request: CheckpointRequest) -> Checkpoint:
    """Open the checkpoint ``request.source``, a local folder or a hub id.

    A model of the hub is taken from the local cache if it is there complete, and is fetched otherwise. Code in
    a checkpoint is never run. Raises ``CheckpointNotFoundError`` if there is no such model, and ``ConfigError`` if
    its ``config.json`` is missing, is not JSON, does not describe the model type it names, or has numbers that no model
    has, and if one of its files is no regular file or is far too large.
    """
    path = _find_folder(request)
    check_folder(path)
    data = merge(_read_json(path / "config.json", required=True), request.overrides)
    check_config(data, path / "config.json")
    if request.weights:
        check_against_files(data, path)
    stored = data.get("quantization_config")
    quantization = stored if isinstance(stored, Mapping) else {}
    if keeps_weights_alone(quantization):
        del data["quantization_config"]
    return Checkpoint(
        source=request.source,
        path=path,
        config=_build_config(data, path),
        generation=_read_json(path / "generation_config.json", required=False),
        pooling=read_pooling(path),
        kv_dtype=read_kv_dtype(quantization, _read_json(path / "hf_quant_config.json", required=False)),
        kv_scale=kv_scale,
    )


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``changes`` into ``base``; nested objects are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _build_config(data: dict[str, Any], path: Path) -> Any:
    """Build the family's own configuration class if transformers knows it, otherwise plain attributes."""
    model_type = data.get("model_type")
    kind, known = config_class(model_type)
    try:
        config = kind.from_dict(data)
    except Exception as error:  # the classes check themselves with many kinds of exceptions
        raise ConfigError(
            f"{path / 'config.json'} is not a valid {model_type!r} configuration: {_line(error)}"
        ) from error
    if not known and model_type is not None:
        config.model_type = model_type
    return config


def _read_json(file: Path, *, required: bool, max_bytes: int = MAX_CONFIG) -> dict[str, Any]:
    if not file.is_file():
        if required:
            raise ConfigError(f"{file.parent} holds no {file.name}; is it a Hugging Face checkpoint?")
        return {}
    try:
        data = json.loads(read_file(file, max_bytes).decode("utf-8"), object_hook=_special_float)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid JSON: {_line(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file} must hold a JSON object, not {type(data).__name__}")
    return data


def _special_float(value: dict[str, Any]) -> Any:
    """Return the number of ``{"__float__": "Infinity"}``, transformers' notation for numbers that JSON lacks."""
    return SPECIAL_FLOATS.get(str(value["__float__"]), value) if value.keys() == {"__float__"} else value


def _find_folder(request: CheckpointRequest) -> Path:
    source = request.source
    local = Path(source).expanduser()
    if os.path.isdir(local):  # unlike Path's methods, these accept names that no file can have
        return local
    if os.path.isfile(local):
        raise ConfigError(f"cannot find model {source!r}: it is a file; name the folder that holds config.json")
    if _looks_like_path(source):
        raise CheckpointNotFoundError(f"cannot find model {source!r}: there is no such folder{_near(local)}")
    cached = _cached(request)
    return cached if cached is not None else _download(request)


def _looks_like_path(source: str) -> bool:
    """Return True for anything but ``name`` or ``owner/name``, which are hub ids."""
    return source.startswith((".", "/", "~")) or "\\" in source or source.count("/") > 1


def _near(missing: Path) -> str:
    """Suggest a folder for a mistyped one from the names next to it."""
    try:
        names = [path.name for path in missing.parent.iterdir() if path.is_dir()]
    except (OSError, ValueError):
        return ""
    near = get_close_matches(missing.name, names, 1)
    return f"; did you mean {str(missing.parent / near[0])!r}?" if near else ""


def _cached(request: CheckpointRequest) -> Path | None:
    try:
        result = huggingface_hub.snapshot_download(request.source, revision=request.revision, local_files_only=True)
    except Exception:  # nothing usable is cached: ask the hub, which decides
        return None
    folder = Path(result)
    complete = (folder / "config.json").is_file() and (not request.weights or _has_weights(folder))
    return folder if complete else None


def _has_weights(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    shards = set(_read_json(index, required=True, max_bytes=MAX_INDEX).get("weight_map", {}).values())
    return all((folder / str(shard)).is_file() for shard in shards)


def _download(request: CheckpointRequest) -> Path:
    try:
        result = huggingface_hub.snapshot_download(
            request.source,
            revision=request.revision,
            allow_patterns=TEXT_FILES + (WEIGHT_FILES if request.weights else []),
            ignore_patterns=OTHER_FORMATS,
        )
    except Exception as error:  # network, authentication and cache errors share no base class
        raise CheckpointNotFoundError(
            f"cannot find model {request.source!r}: it is neither a local folder nor a model that the Hugging Face "
            f"cache or hub could provide ({type(error).__name__}: {_line(error)})"
        ) from error
    return Path(result)


def _line(error: BaseException) -> str:
    """Return the error's message as one short line."""
    return textwrap.shorten(str(error), 200, placeholder=" …")
