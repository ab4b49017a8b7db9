"""C++ kernels for CPUs with AVX-512 and bfloat16 arithmetic, compiled at first use by the system's compiler.

They are chosen for a bfloat16 model on such a CPU if a compiler or a previously compiled library is available.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from sglang_plug import AttentionSpec, Facts, KernelSpec, hookimpl

if TYPE_CHECKING:
    from sglang_plug import AttentionShape

NAME = "avx512"
logger = logging.getLogger(__name__)


@hookimpl
def register_kernels() -> Iterator[KernelSpec]:
    yield KernelSpec(
        name=NAME,
        target=f"{__name__}.kernels:build",
        devices=frozenset({"cpu"}),
        summary="C++ kernels for AVX-512 with bfloat16 arithmetic, compiled at first use",
    )


@hookimpl
def register_attention_backends() -> Iterator[AttentionSpec]:
    yield AttentionSpec(
        name=NAME,
        target=f"{__name__}.attention:CompiledAttention",
        devices=frozenset({"cpu"}),
        graphs=True,
        summary="paged attention in C++ for AVX-512 with bfloat16 arithmetic, compiled at first use",
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    """Choose this backend for bfloat16 on a CPU with the instructions if the library exists or can be compiled."""
    return choose(kind, facts, lambda: str(import_module(f"{__name__}.library").why_not()))


def choose(kind: str, facts: Facts, why_not: Callable[[], str]) -> str | None:
    """Choose this backend if it serves ``facts``; ``why_not`` tells why the library cannot be used, if it cannot."""
    if kind not in ("attention", "kernels") or facts.device != "cpu" or facts.dtype != "bfloat16":
        return None
    reason = unsupported_reason(facts.shape) if kind == "attention" and facts.shape is not None else ""
    reason = reason or why_not()
    if reason:
        logger.info("%s: %s is not chosen: %s", kind, NAME, reason)
        return None
    return NAME


def unsupported_reason(shape: AttentionShape) -> str:
    """Return the reason why the attention kernels cannot serve ``shape``, or an empty string if they can."""
    if shape.kv_dtype is not None:
        return "it reads keys and values in the model's dtype only"
    if shape.sinks:
        return "it has no attention sinks"
    if shape.dim % 2:
        return f"it needs heads of an even width, not {shape.dim}"
    if shape.heads % shape.kv_heads:
        return (
            "it needs the number of query heads to be a multiple of the number of key-value heads, got "
            f"{shape.heads} and {shape.kv_heads}"
        )
    return ""
