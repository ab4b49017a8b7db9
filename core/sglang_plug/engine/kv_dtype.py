"""The dtype of the KV pool: what ``--kv-cache-dtype`` names, and whether the attention backend reads it."""

from __future__ import annotations

import torch

from sglang_plug.config import AUTO, ConfigError
from sglang_plug.plugins import Component, Plugins
from sglang_plug.specs import AttentionSpec

NAMES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
ALIASES = {"bf16": "bfloat16"}


def kv_dtype(name: str, model: torch.dtype) -> torch.dtype | None:
    """The dtype that ``name`` stands for; ``None``: that of the model.

    Raises ``ConfigError`` for an unknown name.
    """
    if name == AUTO:
        return None
    found = NAMES.get(ALIASES.get(name, name))
    if found is None:
        raise ConfigError(f"--kv-cache-dtype {name!r} is unknown; known: {', '.join((AUTO, *NAMES, *ALIASES))}")
    return None if found == model else found


def kv_dtype_name(dtype: torch.dtype) -> str:
    """How options and ``AttentionSpec.kv_dtypes`` call ``dtype``."""
    return next((name for name, one in NAMES.items() if one == dtype), str(dtype).removeprefix("torch."))


def check_kv_dtype(attention: Component, dtype: torch.dtype | None, plugins: Plugins, device: str) -> None:
    """Raises ``ConfigError`` if ``attention`` does not read a pool of ``dtype``; ``None`` is the model's."""
    if dtype is None:
        return
    name = kv_dtype_name(dtype)
    if name in _read_by(attention):
        return
    able = sorted({one.spec.name for one in plugins.all("attention") if name in _read_by(one) and _runs(one, device)})
    other = f"--attention-backend {' or '.join(able)}, or " if able else ""
    raise ConfigError(
        f"{attention} does not read keys and values in {name} (--kv-cache-dtype), only in the model's dtype"
        f"{_also(attention)}; use {other}--kv-cache-dtype auto"
    )


def _also(attention: Component) -> str:
    read = sorted(_read_by(attention))
    return f" and {', '.join(read)}" if read else ""


def _read_by(attention: Component) -> frozenset[str]:
    return attention.spec.kv_dtypes if isinstance(attention.spec, AttentionSpec) else frozenset()


def _runs(attention: Component, device: str) -> bool:
    spec = attention.spec
    return isinstance(spec, AttentionSpec) and bool({"any", device} & spec.devices)
