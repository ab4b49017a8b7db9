"""The dtype of the KV pool: what ``--kv-cache-dtype`` or the checkpoint names, and whether the backend reads it."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from sglang_plug.attention import AttentionShape
from sglang_plug.config import AUTO, ConfigError
from sglang_plug.plugins import Component, Plugins
from sglang_plug.specs import AttentionSpec

logger = logging.getLogger(__name__)

NAMES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
ALIASES = {"bf16": "bfloat16"}


def kv_dtype(name: str, model: torch.dtype, checkpoint: str | None = None) -> torch.dtype | None:
    """The dtype that ``name`` stands for, at ``auto`` what ``checkpoint`` names; ``None``: that of the model.

    Raises ``ConfigError`` for an unknown name.
    """
    if name == AUTO:
        return None if checkpoint is None else kv_dtype(checkpoint, model)
    found = NAMES.get(ALIASES.get(name, name))
    if found is None:
        raise ConfigError(f"--kv-cache-dtype {name!r} is unknown; known: {', '.join((AUTO, *NAMES, *ALIASES))}")
    return None if found == model else found


def kv_dtype_name(dtype: torch.dtype) -> str:
    """How options and ``AttentionSpec.kv_dtypes`` call ``dtype``."""
    return next((name for name, one in NAMES.items() if one == dtype), str(dtype).removeprefix("torch."))


def fit_kv_dtype(
    shape: AttentionShape, attention: Component, wanted: str, plugins: Plugins, device: str
) -> AttentionShape:
    """``shape`` with a pool that ``attention`` reads: the model's dtype if the checkpoint alone wants another.

    ``wanted`` is the value of ``--kv-cache-dtype``. Raises ``ConfigError`` if that names what is not read.
    """
    if shape.kv_dtype is None:
        return shape
    name = kv_dtype_name(shape.kv_dtype)
    if name in _read_by(attention):
        if wanted == AUTO:
            logger.info("Keys and values are kept in %s, as the checkpoint says (--kv-cache-dtype overrides it)", name)
        return shape
    if wanted == AUTO:
        logger.warning(
            "The checkpoint wants keys and values in %s, which %s does not read: they stay in the model's dtype",
            name,
            attention,
        )
        return replace(shape, kv_dtype=None)
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
