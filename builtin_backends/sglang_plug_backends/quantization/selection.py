"""Selection of a checkpoint's quantized matrices by its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import ConfigError, Matrix

EVERY = "Linear"
"""Target that matches all matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection by names of layers or their parents, or ``re:`` and a regular expression matched at their start."""

    ignored: Sequence[str] = ()
    """Matrices that are not quantized."""
    targets: Sequence[str] = (EVERY,)
    """Matrices that are quantized unless ignored."""
    head: bool = True
    """False if the head is never quantized."""
    router: bool = True
    """False if routers are never quantized."""
    anywhere: bool = False
    """True if ``ignored`` matches anywhere in a layer's path, and not only at its start."""

    def holds(self, matrix: Matrix) -> bool:
        """Return whether a matrix is quantized. Raises ``ConfigError`` if only some of its parts are."""
        if (
            matrix.unquantized
            or (matrix.role == "head" and not self.head)
            or (matrix.role == "router" and not self.router)
        ):
            return False
        if self._ignores(matrix.names_of(matrix.name)):
            return False  # checkpoints with fused parts
        kept = {name for name in matrix.checkpoint_names if not self._has(matrix.names_of(name))}
        if kept and len(kept) < len(matrix.checkpoint_names):
            raise ConfigError(
                f"the checkpoint leaves {', '.join(sorted(kept))} out of its quantization, but not all of "
                f"{', '.join(matrix.checkpoint_names)}, which are multiplied together"
            )
        return not kept

    def _has(self, names: Sequence[str]) -> bool:
        """Report whether a matrix, or a part of one, that checkpoints may call by any of ``names`` is quantized."""
        selected = EVERY in self.targets or any(_names(target, name) for target in self.targets for name in names)
        return selected and not self._ignores(names)

    def _ignores(self, names: Sequence[str]) -> bool:
        return any(_names(pattern, name, self.anywhere) for pattern in self.ignored for name in names)


def names_in(config: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """Return the names that a configuration has under ``keys``, each of which is optional."""
    return tuple(name for key in keys for name in config.get(key) or ())


def targets_in(group: Mapping[str, Any], scheme: str) -> tuple[str, ...]:
    """Return the quantized names. Raises ``ConfigError`` for layer classes other than ``Linear``."""
    result = names_in(group, "targets")
    named = (target == EVERY or "." in target or target.startswith("re:") for target in result)
    refuse_unless(bool(result) and all(named), group, "targets", scheme)
    return result


def refuse_unless(condition: bool, config: Mapping[str, Any], key: str, scheme: str) -> None:
    """Raise ``ConfigError`` that names ``key``, its value and the ``scheme`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(f"the checkpoint's {scheme} weights have {key} {config.get(key)!r}, which is not supported")


def _names(pattern: str, name: str, anywhere: bool = False) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    return f".{pattern}." in f".{name}." if anywhere else name == pattern or name.startswith(f"{pattern}.")
