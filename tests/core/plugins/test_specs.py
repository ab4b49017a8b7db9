from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

import sglang_plug
from sglang_plug.plugins import hookspecs, specs
from sglang_plug.plugins.declaration import hook_names
from sglang_plug.plugins.spec import ACCEPTED, Spec

KINDS = [
    spec for spec in vars(specs).values() if isinstance(spec, type) and issubclass(spec, Spec) and spec is not Spec
]


def test_every_kind_has_a_name_of_its_own() -> None:
    names = [kind.kind for kind in KINDS]
    assert len(names) == len(set(names)) >= 12
    assert all(name == name.lower() and " " not in name and ":" not in name for name in names)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_spec_needs_only_a_name_and_a_target_and_cannot_be_changed(kind: type[Any]) -> None:
    spec = kind(name="x", target="package.module:Thing")
    assert (spec.summary, spec.settings, spec.needs) == ("", None, ())
    assert kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}(")
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "y"
    with pytest.raises(TypeError):
        kind("x", "package.module:Thing")
    assert hash(spec) == hash(kind(name="x", target="package.module:Thing"))


def test_every_kind_can_be_declared_through_a_hook_and_is_public() -> None:
    namespace = {**vars(hookspecs), "Facts": object, "EngineConfig": object}
    declared = set[type]()
    for name in hook_names():
        if name.startswith("register_"):
            returned = typing.get_type_hints(getattr(hookspecs, name), namespace)["return"]
            (items,) = typing.get_args(returned)
            declared |= set(typing.get_args(items)) or {items}
    assert declared == set(KINDS)
    assert {kind.__name__ for kind in KINDS} <= set(sglang_plug.__all__)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (specs.EvictionSpec, {"name": 3}, r"EvictionSpec\(3\): name must be text, not 3"),
        (specs.EvictionSpec, {"name": ""}, "name must be a word"),
        (specs.EvictionSpec, {"name": "a=b"}, "name must be a word"),
        (specs.EvictionSpec, {"name": "a b"}, "name must be a word"),
        (specs.EvictionSpec, {"name": "auto"}, "other than 'auto'"),
        (specs.EvictionSpec, {"target": "package.module"}, "target must be 'package.module:attribute', not"),
        (specs.EvictionSpec, {"target": dict}, "target must be text"),
        (specs.EvictionSpec, {"settings": "package"}, "settings must be 'package.module:Class'"),
        (specs.EvictionSpec, {"needs": "torch"}, r"needs must be a tuple of text, as \('torch',\), not 'torch'"),
        (specs.KernelSpec, {"devices": "cpu"}, "devices must be a frozenset of text"),
        (specs.KernelSpec, {"devices": {"cpu"}}, "devices must be a frozenset of text"),
        (specs.ModelSpec, {"tasks": frozenset({"genrate"})}, "tasks must be a frozenset of some of generate, embed"),
        (specs.ModelSpec, {"causal": 1}, "causal must be True or False"),
        (specs.GrammarSpec, {"forms": frozenset({"jason"})}, "forms must be a frozenset of some of json_schema"),
        (specs.RouteSpec, {"auth": "everybody"}, "auth must be one of public, user, admin, not 'everybody'"),
    ],
)
def test_a_field_that_holds_something_else_is_refused_at_once(kind: type[Any], fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**{"name": "x", "target": "package.module:Thing", **fields})


def test_every_field_is_looked_at() -> None:
    assert {item.type for kind in KINDS for item in dataclasses.fields(kind)} == set(ACCEPTED)
