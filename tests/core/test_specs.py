from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

import sglang_plug
from sglang_plug import hookspecs, specs
from sglang_plug.plugins import hook_names
from sglang_plug.specs import Spec

KINDS = [one for one in vars(specs).values() if isinstance(one, type) and issubclass(one, Spec) and one is not Spec]


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
