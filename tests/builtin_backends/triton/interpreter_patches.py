"""Patches that make Triton's interpreter faster without a change of its results.

Nearly all of its time is spent around the computation of numpy:

* Before every call of a function of a kernel it replaces all builtin functions of the language, although those that the
  kernel's launch replaced still are.
* It makes a type and a shape for every value anew, checks them, and writes the type's name.
* It compares shapes to find that two values need no broadcast, and looks dtypes up in a table that it makes each time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

KNOWN_VERSION = "3.9."
"""The version of Triton for which the patches of types and shapes were written; other versions keep their own code."""


def make_faster(patch: pytest.MonkeyPatch) -> None:
    """Patch Triton's interpreter until ``patch`` is undone."""
    patch.setattr(interpreter, "_patch_lang", faster_calls(interpreter._patch_lang))
    if not triton.__version__.startswith(KNOWN_VERSION):
        return
    shapes = Shapes()
    patch.setattr(core.block_type, "__init__", _block_type(shapes))
    patch.setattr(core.tensor, "__init__", _tensor(shapes))
    patch.setattr(core.dtype, "__eq__", _same_or(core.dtype.__eq__))
    patch.setattr(TritonSemantic, "broadcast_impl_value", _broadcast(TritonSemantic.broadcast_impl_value))
    patch.setattr(interpreter, "_get_np_dtype", _numpy_dtype(interpreter._get_np_dtype))
    patch.setattr(interpreter, "_patch_attr", _patch_builtin)


def faster_calls(patch_lang: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``patch_lang`` for functions whose language is not patched yet, and nothing to do for others."""
    languages: dict[Any, list[ModuleType]] = {}

    def patch(fn: Any) -> Any:
        if fn not in languages:
            modules = filter(inspect.ismodule, fn.__globals__.values())
            languages[fn] = [module for module in modules if module in (tl, tl.core)]
        if all(map(_is_patched, languages[fn])):
            return interpreter._LangPatchScope()
        return patch_lang(fn)

    return patch


def _is_patched(language: ModuleType) -> bool:
    return not tl.core.is_builtin(language.arange) and not tl.core.is_builtin(language.tensor.to)


class Shape(core.tuple):
    """A validated shape, with the values that types and tensors derive from it."""

    def __init__(self, sizes: Iterable[int]) -> None:
        super().__init__(sizes)
        if not self.values:
            raise TypeError("0d block_type is forbidden")
        self.count = core.validate_block_shape(self.values)
        self.text = str(self)
        self.constants = core.tuple([core.constexpr(size) for size in self.values])
        self.constant_count = core.constexpr(self.count)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, (list, core.tuple)):
            return core.constexpr(self.values == (other if isinstance(other, list) else other.values))
        return super().__eq__(other)

    __hash__ = core.tuple.__hash__


class Shapes(dict[tuple[Any, ...], Shape]):
    """The shapes by their tuples of sizes; each is created once, so that equal shapes are identical."""

    def of(self, sizes: Any) -> Shape:
        """Return a shape, given in any form that Triton accepts."""
        if isinstance(sizes, Shape):
            return sizes
        key = tuple([size.value if isinstance(size, core.constexpr) else size for size in sizes])
        if key not in self:
            self[key] = Shape(key)
        return self[key]


def _block_type(shapes: Shapes) -> Callable[..., None]:
    def init(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        self.shape = type_shape = shapes.of(shape)
        self.numel = type_shape.count
        self.name = f"<{type_shape.text}, {element_ty}>"

    return init


def _tensor(shapes: Shapes) -> Callable[..., None]:
    none, one = core.tuple([]), core.constexpr(1)

    def init(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        if type.is_block():
            shape = shapes.of(type.shape)
            self.shape, self.numel = shape.constants, shape.constant_count
        else:
            self.shape, self.numel = none, one

    return init


def _same_or(usual: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: self is other or usual(self, other)


def _broadcast(usual: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        both = left.is_block(), right.is_block()
        if both == (False, False) or (both == (True, True) and left.shape is right.shape):
            return lhs, rhs
        return usual(self, lhs, rhs)

    return broadcast


def _numpy_dtype(usual: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def numpy_dtype(of: Any) -> Any:
        element = of.element_ty if isinstance(of, core.block_type) else of
        if type(element) is not core.dtype:
            return usual(element)
        if element.name not in known:
            known[element.name] = usual(element)
        return known[element.name]

    return numpy_dtype


def _patch_builtin(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Let a builtin function run without checking again whether a kernel calls it."""
    inner, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return inner(*args, **kwargs)

    scope.set_attr(obj, name, call)
