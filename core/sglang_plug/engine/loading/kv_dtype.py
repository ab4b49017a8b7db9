"""The dtype of the KV pool, named by ``--kv-cache-dtype`` or the checkpoint, and supported by the backend."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from sglang_plug.config import AUTO, ConfigError
from sglang_plug.contracts.model.attention import AttentionShape
from sglang_plug.plugins.registry import Component, Plugins
from sglang_plug.plugins.specs import AttentionSpec

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
    """Return the dtype that ``name`` stands for, or at ``auto`` the checkpoint's; ``None``: the model's dtype.

    Raises ``ConfigError`` for an unknown name.
    """
    if name == AUTO:
        return None if checkpoint is None else kv_dtype(checkpoint, model)
    dtype = NAMES.get(ALIASES.get(name, name))
    if dtype is None:
        raise ConfigError(f"--kv-cache-dtype {name!r} is unknown; known: {', '.join((AUTO, *NAMES, *ALIASES))}")
    return None if dtype == model else dtype


def kv_dtype_name(dtype: torch.dtype) -> str:
    """Return the name of ``dtype`` in options and in ``AttentionSpec.kv_dtypes``."""
    return next(
        (name for name, named_dtype in NAMES.items() if named_dtype == dtype), str(dtype).removeprefix("torch.")
    )


def fit_kv_dtype(
    shape: AttentionShape, attention: Component, requested: str, plugins: Plugins, device: str
) -> AttentionShape:
    """Return ``shape`` with a KV dtype that ``attention`` reads.

    ``requested`` is the value of ``--kv-cache-dtype``. An unsupported dtype of the checkpoint is replaced by the
    model's; for an unsupported dtype in ``requested``, ``ConfigError`` is raised.
    """
    if shape.kv_dtype is None:
        return shape
    name = kv_dtype_name(shape.kv_dtype)
    if name in _readable_dtypes(attention):
        if requested == AUTO:
            logger.info("Keys and values are kept in %s, as the checkpoint says (--kv-cache-dtype overrides it)", name)
        return shape
    if requested == AUTO:
        logger.warning(
            "The checkpoint specifies a KV cache dtype of %s, which %s does not read: the KV cache keeps the "
            "model's dtype",
            name,
            attention,
        )
        return replace(shape, kv_dtype=None)
    backends = sorted(
        {
            component.spec.name
            for component in plugins.all("attention")
            if name in _readable_dtypes(component) and _runs(component, device)
        }
    )
    other = f"--attention-backend {' or '.join(backends)}, or " if backends else ""
    raise ConfigError(
        f"{attention} does not read keys and values in {name} (--kv-cache-dtype), only in the model's dtype"
        f"{_and_other_dtypes(attention)}; use {other}--kv-cache-dtype auto"
    )


def _and_other_dtypes(attention: Component) -> str:
    read = sorted(_readable_dtypes(attention))
    return f" and {', '.join(read)}" if read else ""


def _readable_dtypes(attention: Component) -> frozenset[str]:
    return attention.spec.kv_dtypes if isinstance(attention.spec, AttentionSpec) else frozenset()


def _runs(attention: Component, device: str) -> bool:
    spec = attention.spec
    return isinstance(spec, AttentionSpec) and bool({"any", device} & spec.devices)
