"""Which matrices of a checkpoint are quantized, as its configuration says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import ConfigError, Matrix

EVERY = "Linear"
"""A target that stands for all matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Names are those of layers or of what contains them, or ``re:`` and a regular expression for their beginning."""

    ignored: Sequence[str] = ()
    """What is not quantized."""
    targets: Sequence[str] = (EVERY,)
    """What is, if it is not ignored."""
    head: bool = True
    """False if the head is never quantized."""
    router: bool = True
    """False if routers never are."""
    anywhere: bool = False
    """True if names of ``ignored`` may stand anywhere in a layer's path, and not only at its beginning."""

    def holds(self, matrix: Matrix) -> bool:
        """Whether a matrix is quantized. Raises ``ConfigError`` if some of its parts are and some are not."""
        if matrix.plain or (matrix.role == "head" and not self.head) or (matrix.role == "router" and not self.router):
            return False
        if any(_names(one, matrix.name, self.anywhere) for one in self.ignored):
            return False  # checkpoints that have the parts in one
        kept = {name for name in matrix.checkpoint_names if not self._has(name)}
        if kept and len(kept) < len(matrix.checkpoint_names):
            raise ConfigError(
                f"the checkpoint leaves {', '.join(sorted(kept))} out of its quantization, but not all of "
                f"{', '.join(matrix.checkpoint_names)}, which are multiplied together"
            )
        return not kept

    def _has(self, name: str) -> bool:
        wanted = EVERY in self.targets or any(_names(one, name) for one in self.targets)
        return wanted and not any(_names(one, name, self.anywhere) for one in self.ignored)


def names_in(config: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """The names that a configuration has under ``keys``, each of which may be missing."""
    return tuple(name for key in keys for name in config.get(key) or ())


def targets_in(group: Mapping[str, Any], what: str) -> tuple[str, ...]:
    """The names that are quantized. Raises ``ConfigError`` for kinds of layers, as which only ``Linear`` is known."""
    found = names_in(group, "targets")
    named = (one == EVERY or "." in one or one.startswith("re:") for one in found)
    refuse_unless(bool(found) and all(named), group, "targets", what)
    return found


def refuse_unless(condition: bool, config: Mapping[str, Any], key: str, what: str) -> None:
    """Raise ``ConfigError`` that names ``key`` and its value unless ``condition`` holds; ``what`` has such weights."""
    if not condition:
        raise ConfigError(f"the checkpoint's {what} weights have {key} {config.get(key)!r}, which is not supported")


def _names(pattern: str, name: str, anywhere: bool = False) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    return f".{pattern}." in f".{name}." if anywhere else name == pattern or name.startswith(f"{pattern}.")
