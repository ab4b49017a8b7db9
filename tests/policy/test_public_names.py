"""The contract is small, sorted and complete; a change of it is a change of ``golden_names.txt``."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import sglang_plug

GOLDEN = Path(__file__).with_name("golden_names.txt")
PUBLIC = ("sglang_plug", "sglang_plug.layers", "sglang_plug.testing", "sglang_plug_api.plugin")


@pytest.mark.parametrize("package", PUBLIC)
def test_names_are_sorted_unique_and_there(package: str) -> None:
    module = importlib.import_module(package)
    names = list(module.__all__)
    assert names == sorted(set(names))
    for name in names:
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Atention'"):
        _ = sglang_plug.Atention


def test_names_are_the_agreed_ones() -> None:
    names = [f"{package}.{name}" for package in PUBLIC for name in importlib.import_module(package).__all__]
    assert names == GOLDEN.read_text().split(), f"if the contract is meant to change, edit {GOLDEN.name}"
