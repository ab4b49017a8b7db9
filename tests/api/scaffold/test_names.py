"""Tests of the names of new plugins."""

from __future__ import annotations

import pytest

from sglang_plug import PluginError
from sglang_plug_api.scaffold.names import PluginNames


@pytest.mark.parametrize(
    "typed", ["my-policy", "My_Policy", "my..policy", "sglang-plug-my-policy", "SGLang_Plug_my-policy"]
)
def test_every_spelling_is_one_name(typed: str) -> None:
    names = PluginNames.of(typed)
    assert (names.short, names.distribution) == ("my-policy", "sglang-plug-my-policy")
    assert (names.module, names.package, names.title_case) == ("my_policy", "sglang_plug_my_policy", "MyPolicy")


@pytest.mark.parametrize(
    "typed", ["", "-", "a-", "-a", "3d", "a b", "a/b", "../a", "a:b", "a=b", "auto", "é", "ｍｙ", "a\n", "sglang-plug-"]
)
def test_other_names_are_refused(typed: str) -> None:
    with pytest.raises(PluginError, match="cannot be the name of a plugin"):
        PluginNames.of(typed)


def test_a_name_must_not_be_long() -> None:
    assert PluginNames.of("a" * 40).short == "a" * 40
    with pytest.raises(PluginError, match="at most 40 characters"):
        PluginNames.of("a" * 41)


@pytest.mark.parametrize("typed", ["api", "models", "backends", "lang"])
def test_packages_of_the_project_are_not_shadowed(typed: str) -> None:
    with pytest.raises(PluginError, match=f"a package 'sglang_plug_{typed}' already"):
        PluginNames.of(typed)
