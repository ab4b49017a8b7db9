"""Uncommon failures of plugins neither block the program nor hide which plugin failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_plug import EngineConfig, Facts, PluginError, PluginOptions, Plugins
from sglang_plug.config import ConfigError

Install = Callable[..., Path]
PICKY = "@hookimpl\ndef {hook}:\n    {body}\n"


def test_a_plugin_that_exits_while_it_is_imported(install: Install) -> None:
    install("sglang-leaves", "raise SystemExit('bye')")
    (failure,) = Plugins.discover().failures
    assert "sglang-leaves" in str(failure) and "bye" in str(failure)


@pytest.mark.parametrize(
    ("file", "text"),
    [("METADATA", ""), ("entry_points.txt", "[sglang_plug]\nno equals sign\n")],
    ids=["nameless", "junk"],
)
def test_a_distribution_whose_metadata_is_damaged(install: Install, file: str, text: str) -> None:
    folder = install("sglang-damaged", "")
    (folder / "sglang_damaged-1.0.dist-info" / file).write_text(text)
    plugins = Plugins.discover()
    assert plugins.get("eviction", "lru").plugin.distribution == "sglang-plug"


def test_a_project_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "half-done").mkdir()
    (tmp_path / "half-done" / "pyproject.toml").write_text("[project\n")
    with pytest.raises(ConfigError, match="half-done"):
        Plugins.discover(PluginOptions(dirs=(str(tmp_path),)))


def test_a_component_to_block_that_nobody_declares() -> None:
    with pytest.raises(PluginError, match="--block-plugin: .*'eviction:lruu'.* did you mean 'eviction:lru'?"):
        Plugins.discover(PluginOptions(block=("eviction:lruu",)))


def test_a_hook_with_an_argument_that_does_not_exist_leaves_nothing_behind(install: Install) -> None:
    source = PICKY.format(hook="choose_component(kind)", body="return 'lfu' if kind == 'eviction' else None")
    install("sglang-half", source + PICKY.format(hook="configure(conf)", body="raise ConfigError('never')"))
    plugins = Plugins.discover()
    assert "configure" in plugins.failures[0].message
    assert plugins.choose("eviction", Facts()) == "lru"
    assert plugins.fingerprint[-1][0] != "sglang-half"


def test_a_choice_that_fails_names_the_plugin(install: Install) -> None:
    install("sglang-dizzy", PICKY.format(hook="choose_component(kind)", body="1 / 0"))
    with pytest.raises(PluginError, match="sglang-dizzy.*ZeroDivisionError"):
        Plugins.discover().choose("eviction", Facts())


def test_a_choice_of_something_unknown_names_who_chose(install: Install) -> None:
    install("sglang-dreams", PICKY.format(hook="choose_component(kind)", body="return 'nonsense'"))
    with pytest.raises(PluginError, match="no eviction named 'nonsense'") as error:
        Plugins.discover().resolve("eviction", "auto", Facts())
    assert "sglang-dreams" in str(error.value)


def test_a_configure_hook_that_fails_names_the_plugin(install: Install) -> None:
    install("sglang-dizzy", PICKY.format(hook="configure(config)", body="1 / 0"))
    with pytest.raises(ConfigError, match="sglang-dizzy.*ZeroDivisionError"):
        Plugins.discover().configure(EngineConfig())


def test_settings_that_cannot_be_imported_name_the_component(install: Install) -> None:
    body = "yield EvictionSpec(name='g', target='x:y', settings='no_such:X')"
    install("sglang-lost", PICKY.format(hook="register_cache_policies()", body=body))
    with pytest.raises(PluginError, match="eviction 'g' from sglang-lost 1.0 .*no_such"):
        Plugins.discover().get("eviction", "g").settings()


def test_a_folder_of_a_plugin_that_is_installed_too(install: Install, tmp_path: Path) -> None:
    folder = install("sglang-both", "")
    project = tmp_path / "plugins" / "sglang-both"
    project.mkdir(parents=True)
    (project / "sglang_both.py").write_text((folder / "sglang_both.py").read_text())
    (project / "pyproject.toml").write_text(
        '[project]\nname = "sglang-both"\nversion = "1.0"\n'
        '[project.entry-points.sglang_plug]\nsglang-both = "sglang_both"\n'
    )
    plugins = Plugins.discover(PluginOptions(dirs=(str(tmp_path / "plugins"),)))
    assert [plugin.name for plugin in plugins.loaded].count("sglang-both") == 1
    assert all(len(str(failure)) < 300 for failure in plugins.failures)


def test_one_distribution_that_declares_a_name_twice_is_told_so(install: Install) -> None:
    body = "return [EvictionSpec(name='same', target='x:y'), EvictionSpec(name='same', target='x:z')]"
    install("sglang-twin", PICKY.format(hook="register_cache_policies()", body=body))
    plugins = Plugins.discover()
    assert "eviction:same" in plugins.failures[0].message
    assert "twice" in plugins.failures[0].message


def test_an_allow_list_of_components_leaves_other_plugins_no_say(install: Install) -> None:
    install(
        "sglang-loud", PICKY.format(hook="choose_component(kind)", body="return 'fifo' if kind == 'eviction' else None")
    )
    assert Plugins.discover(PluginOptions(allow=("eviction:lfu",))).choose("eviction", Facts()) == "lru"
