"""Limits of the numbers in ``config.json``, checked before anything is built from them.

A configuration class may allocate a list with an entry for each layer, and a model is built before its weights are
read, so a single absurd number would take the machine's memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_plug import ConfigError

MAX_DEPTH = 32
"""Maximum nesting of objects and lists."""
MAX_ENTRIES = 1 << 19
"""Maximum entries of all objects and lists together."""
MAX_LIST = 1 << 16
"""Maximum entries of one list."""
MAX_LAYERS = 1 << 12
MAX_HEADS = 1 << 14
MAX_SIZE = 1 << 22
"""Maximum of widths of vectors, and of numbers of experts, groups and the like."""
MAX_VOCABULARY = 1 << 24
MAX_POSITIONS = 1 << 27

LAYERS = re.compile(r"(num|n)_(\w+_)?(layers?|blocks)|(encoder|decoder)_layers|depth")
POSITIONS = re.compile(r"(\w+_)?max_position_embeddings|n_positions|max_seq_len|seq_length|max_sequence_length|n_ctx")
HEADS = re.compile(r"(num|n)_(\w+_)?heads?")
SIZES = re.compile(
    r"\w+_(size|dim|rank|experts|groups|state|width|channels)|(n|num)_(embd|inner|group)|d_(model|inner|ff|conv|state)"
)
REQUIRED = frozenset(
    {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "n_embd", "n_layer", "n_head", "d_model"}
)
"""Fields that are positive integers wherever they occur."""
WIDTHS = ("hidden_size", "n_embd", "d_model")
PARAMETERS = (
    ("vocab_size",),
    ("num_hidden_layers", "intermediate_size"),
    ("num_attention_heads", "head_dim"),
    *((experts, "moe_intermediate_size") for experts in ("num_experts", "num_local_experts", "n_routed_experts")),
)
"""Fields whose product, times the model's width, bounds a parameter count.

The counts are those of the embedding, of the layers' feed-forward networks, of a layer's queries, and of a layer's
experts.
"""


def check_config(data: Mapping[str, Any], file: Path) -> None:
    """Raise ``ConfigError``, naming the field, for an absurd number and for data that are too deep or too long."""
    for count, (name, field, value) in enumerate(_fields(data, file), 1):
        if count > MAX_ENTRIES:
            raise ConfigError(f"{file} has more than {MAX_ENTRIES} entries, the maximum")
        if field in REQUIRED and value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{file}: {name} must be a whole number above 0, not {_shortened(value)}")
        if isinstance(value, int | float) and (limit := _limit(field)) is not None:
            if not (math.isfinite(value) and -limit <= value <= limit):
                raise ConfigError(f"{file}: {name} is {_shortened(value)}; the maximum is {limit}")


def check_against_files(data: Mapping[str, Any], folder: Path) -> None:
    """Raise ``ConfigError`` if the configuration describes more parameters than the checkpoint's files have bits.

    No format stores a parameter in less than one bit. Nothing is checked where there are no safetensors files.
    """
    bits = 8 * sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())
    parts = [("", data), *((f"{name}.", part) for name, part in data.items() if isinstance(part, Mapping))]
    for prefix, part in parts if bits else ():
        for names in PARAMETERS:
            width = next((name for name in WIDTHS if name in part), WIDTHS[0])
            factors = {name: part.get(name) for name in (*names, width)}
            sizes = [value for value in factors.values() if type(value) is int]
            if len(sizes) == len(factors) and (count := math.prod(sizes)) > bits:
                read_json_file = ", ".join(f"{prefix}{name} {value}" for name, value in factors.items())
                raise ConfigError(
                    f"{folder / 'config.json'} describes {count} parameters or more ({read_json_file}); "
                    f"the checkpoint's files have only {bits // 8} bytes"
                )


def _fields(data: Mapping[str, Any], file: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield every scalar with its path and the nearest field's name; containers are yielded as ``None``.

    Raises ``ConfigError`` for data that are nested too deeply and for lists that are too long.
    """
    waiting: list[tuple[str, str, Any, int]] = [(str(name), str(name), value, 1) for name, value in data.items()]
    while waiting:
        name, field, value, depth = waiting.pop()
        if not isinstance(value, Mapping | list):
            yield name, field, value
            continue
        if depth > MAX_DEPTH:
            raise ConfigError(f"{file} is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, Mapping):
            waiting += [(f"{name}.{key}"[-200:], str(key), item, depth + 1) for key, item in value.items()]
        elif len(value) > MAX_LIST:
            raise ConfigError(f"{file}: {name} has {len(value)} entries; the maximum is {MAX_LIST}")
        else:
            waiting += [(name, field, item, depth + 1) for item in value]
        yield name, "", None


def _limit(field: str) -> int | None:
    """Return the maximum of a field; ``None`` if it determines no size."""
    if field == "vocab_size":
        return MAX_VOCABULARY
    patterns = ((LAYERS, MAX_LAYERS), (POSITIONS, MAX_POSITIONS), (HEADS, MAX_HEADS), (SIZES, MAX_SIZE))
    return next((limit for pattern, limit in patterns if pattern.fullmatch(field)), None)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
