"""The order of step extensions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug import ConfigError, PluginError, PluginOptions, Plugins, StepExtensionSpec
from sglang_plug.plugins.extension_order import ordered_extensions, unknown_names, usable_extensions


def component(name: str, **order: tuple[str, ...]) -> Any:
    spec = StepExtensionSpec(name=name, target="a:A", **order)
    return SimpleNamespace(spec=spec, spec_as=lambda kind: spec)


def names(*components: Any) -> list[str]:
    return [extension.spec.name for extension in ordered_extensions(components)]


def test_extensions_are_sorted_by_name_where_no_order_is_declared() -> None:
    assert names(component("b"), component("c"), component("a")) == ["a", "b", "c"]


def test_before_and_after_are_obeyed() -> None:
    assert names(component("a", after=("c",)), component("b", before=("a",)), component("c")) == ["b", "c", "a"]


def test_names_of_extensions_that_are_not_loaded_are_ignored() -> None:
    assert names(component("a", after=("missing",)), component("b", before=("other",))) == ["a", "b"]


def test_only_names_that_no_plugin_declares_are_unknown() -> None:
    components = [component("a", before=("b", "blocked"), after=("lorra",)), component("b", after=("zzzzzz",))]
    unknown = {name.name: name.suggestion for name in unknown_names(components, ["a", "b", "blocked", "lora"])}
    assert unknown == {"lorra": "; did you mean 'lora'?", "zzzzzz": ""}


def test_a_contradiction_is_an_error_that_names_the_extensions() -> None:
    with pytest.raises(ConfigError, match="contradict each other in before= and after=: .*a.*b.*; block one of "):
        ordered_extensions([component("a", before=("b",)), component("b", before=("a",))])


TWIN = """
from sglang_plug import StepExtensionSpec, hookimpl

@hookimpl
def register_step_extensions():
    yield StepExtensionSpec(name="twin", target=f"{__name__}:build")
"""


def test_a_name_that_two_plugins_declare_is_an_error_until_one_is_preferred(tmp_path: Path) -> None:
    files = [tmp_path / "first_twin.py", tmp_path / "second_twin.py"]
    for file in files:
        file.write_text(TWIN)
    options = PluginOptions(files=tuple(map(str, files)))
    with pytest.raises(PluginError, match="'twin'.* clash; add --prefer step-extension:twin=DISTRIBUTION"):
        usable_extensions(Plugins.discover(options))
    for file in files:
        preferred = PluginOptions(files=options.files, prefer={"step-extension:twin": str(file)})
        twins = [used for used in usable_extensions(Plugins.discover(preferred)) if used.spec.name == "twin"]
        assert [used.plugin.distribution for used in twins] == [str(file)]
