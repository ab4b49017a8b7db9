"""The base class of specs, and what their fields may hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from sglang_plug.contracts.request import Task
from sglang_plug.contracts.text.grammar import CONSTRAINT_KINDS

Auth = Literal["public", "user", "admin"]

EXTENSION_FIELDS: Mapping[str, str] = {
    "adapter": "lora",
    "constraint": "structured-outputs",
    "deadline": "deadlines",
    "media": "multimodal",
    "reasoning_prefix": "structured-outputs",
}
"""Field of ``Request`` that only step extensions serve, and that is ``None`` or empty where a request does not use it
-> the built-in extension that serves it."""
ANY_DEVICE: frozenset[str] = frozenset({"any"})
NAME = re.compile(r"(?!auto$)[^\s=:,]+")
TARGET = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


def _set_of(names: Sequence[str] = ()) -> tuple[Callable[[Any], bool], str]:
    """Return a check for a frozenset of text, or of some of ``names``, and its description."""

    def accepts(value: Any) -> bool:
        return isinstance(value, frozenset) and all(
            isinstance(item, str) and (not names or item in names) for item in value
        )

    return accepts, "a frozenset of " + (f"some of {', '.join(names)}" if names else "text, as frozenset({'cpu'})")


ACCEPTED: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "text"),
    "str | None": (lambda value: isinstance(value, str | None), "text or None"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "tuple[str, ...]": (
        lambda value: isinstance(value, tuple) and all(isinstance(item, str) for item in value),
        "a tuple of text, as ('torch',)",
    ),
    "frozenset[str]": _set_of(),
    "frozenset[Task]": _set_of(get_args(Task)),
    "frozenset[ConstraintKind]": _set_of(CONSTRAINT_KINDS),
    "Auth": (lambda value: value in get_args(Auth), f"one of {', '.join(get_args(Auth))}"),
}
"""Annotation of a field -> what it may hold, and how an error says that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A named component and where to find it.

    ``target`` is ``"package.module:attribute"`` and is imported only when the component is selected, so a
    module that declares specs must not import torch or any other heavy library.
    """

    kind: ClassVar[str]

    name: str
    target: str
    summary: str = ""
    """One line for ``plugins list`` and ``--help``."""
    settings: str | None = None
    """``"package.module:Class"``, a dataclass or a ``msgspec.Struct``: the component's own options, set with ``--set
    name.key=value`` and checked before a model is loaded. The target receives an instance: as its last argument, or
    where the contract of the kind says."""
    example: str | None = None
    """``"package.module:function"``: returns the arguments of the kind's conformance test, besides the component, as a
    dictionary. ``sglang-plug plugins test`` uses them; a model gives a ``config``, a route its ``requests``."""
    needs: tuple[str, ...] = ()
    """Importable module names without which the component is listed as unavailable; ``"module>=1.2"`` for one whose
    distribution, of the same name, must have a version."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a field that does not hold what it should: nobody else looks before it is used."""
        for item in fields(self):
            accepts, expected = ACCEPTED[item.type]
            value = getattr(self, item.name)
            if not accepts(value):
                raise ValueError(f"{type(self).__name__}({self.name!r}): {item.name} must be {expected}, not {value!r}")
        for name, pattern, expected in (
            ("name", NAME, "a word without blanks and any of '=:,', other than 'auto'"),
            ("target", TARGET, "'package.module:attribute'"),
            ("settings", TARGET, "'package.module:Class'"),
            ("example", TARGET, "'package.module:function'"),
            ("detects", TARGET, "'package.module:function'"),
            ("request_fields", TARGET, "'package.module:Class'"),
        ):
            value = getattr(self, name, None)
            if value is not None and not pattern.fullmatch(value):
                raise ValueError(f"{type(self).__name__}({self.name!r}): {name} must be {expected}, not {value!r}")

    def matches_model(self, model: Any) -> bool:
        """Report whether the component suits the model with this configuration, so that no plugin has to choose it."""
        return False
