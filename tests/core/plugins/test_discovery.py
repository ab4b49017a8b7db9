from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug.config import ConfigError, PluginOptions
from sglang_plug.plugins.installed.discovery import DiscoveredPlugin, find_plugins, normalise

PLUGINS = Path(__file__).parents[3] / "plugins"

Install = Callable[..., Path]


def discovered(**options: Any) -> dict[str, DiscoveredPlugin]:
    return {plugin.name: plugin for plugin in find_plugins(PluginOptions(**options))}


def write_project(folder: Path, name: str, *, points: str = 'it = "a_module"', source: str = "a = 1") -> Path:
    project = folder / name
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "2.5"\n[project.entry-points.sglang_plug]\n{points}\n'
    )
    (project / "a_module.py").write_text(source)
    return project


def test_our_own_plugins_come_first_and_are_there() -> None:
    plugins = find_plugins(PluginOptions())
    assert plugins[0].distribution == "sglang-plug"
    assert {"eviction", "prefix_cache", "schedule"} <= {plugin.name for plugin in plugins}


def test_an_installed_distribution_is_found_with_its_version(install: Install) -> None:
    install("extra-thing", "raise SystemExit('finding a plugin must not import it')", version="3.1")
    assert discovered()["extra-thing"] == DiscoveredPlugin("extra-thing", "extra-thing", "3.1", "extra_thing")


def test_third_party_plugins_are_ordered_by_distribution_after_the_built_in_ones(install: Install) -> None:
    for name in ("zebra", "aardvark"):
        install(name, "")
    names = [plugin.distribution for plugin in find_plugins(PluginOptions())]
    assert names.index("aardvark") < names.index("zebra")
    assert max(i for i, name in enumerate(names) if name == "sglang-plug") < names.index("aardvark")


def test_the_first_of_two_copies_on_the_path_wins(install: Install) -> None:
    install("twice", "", version="1.0")
    (install("other", "") / "twice-2.0.dist-info").mkdir()
    folder = install("shadow", "")
    newer = folder / "twice-2.0.dist-info"
    newer.mkdir()
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: Twice\nVersion: 2.0\n")
    (newer / "entry_points.txt").write_text("[sglang_plug]\ntwice = twice\n")
    assert discovered()["twice"].version == "2.0"
    assert [plugin.distribution for plugin in find_plugins(PluginOptions())].count("twice") == 1


@pytest.mark.parametrize("spelling", ["My_Plugin", "my.plugin", "MY--plugin"])
def test_names_of_distributions_are_compared_in_one_spelling(spelling: str) -> None:
    assert normalise(spelling) == "my-plugin"


def test_a_file_is_a_plugin_whose_version_is_its_content(tmp_path: Path) -> None:
    file = tmp_path / "my-policy.py"
    file.write_text("x = 1")
    plugin = discovered(files=(str(file),))["my-policy"]
    assert plugin.version == hashlib.sha256(b"x = 1").hexdigest()[:12]
    assert plugin.explicit and plugin.load().x == 1
    file.write_text("x = 2")
    assert discovered(files=(str(file),))["my-policy"].version != plugin.version


def test_two_files_of_one_name_keep_their_own_code(tmp_path: Path) -> None:
    files = [tmp_path / folder / "policy.py" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"owner = {file.parent.name!r}\ndef own(): return owner")
    first, second = [plugin for plugin in find_plugins(PluginOptions(files=tuple(map(str, files)))) if plugin.explicit]
    assert [plugin.load().own() for plugin in (first, second)] == ["a", "b"]
    assert importlib.import_module(first.module).owner == "a"


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="--plugin: there is no file 'nowhere.py'"):
        discovered(files=("nowhere.py",))


def test_a_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="--plugins-dir: there is no folder 'nowhere'"):
        discovered(dirs=("nowhere",))


def test_a_folder_holds_projects_and_files(tmp_path: Path) -> None:
    project = write_project(tmp_path, "sglang-plug-it")
    (tmp_path / "loose.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    plugins = discovered(dirs=(str(tmp_path),))
    assert plugins["it"] == DiscoveredPlugin("it", "sglang-plug-it", "2.5", "a_module", path=str(project))
    assert plugins["loose"].file == str(tmp_path / "loose.py")
    assert plugins["it"].explicit


def test_a_project_itself_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "own"\nentry-points.sglang_plug = { own = "own_module" }'
    )
    (tmp_path / "own_module.py").write_text("x = 1")
    assert discovered(dirs=(str(tmp_path),))["own"].load().x == 1


def test_a_project_may_keep_its_packages_in_src(tmp_path: Path) -> None:
    project = write_project(tmp_path, "with-src")
    (project / "src").mkdir()
    assert discovered(dirs=(str(tmp_path),))["it"].path == str(project / "src")


def test_a_project_without_our_entry_points_is_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert set(discovered(dirs=(str(tmp_path),))) == set(discovered())


def test_the_same_folder_twice_is_one_plugin(tmp_path: Path) -> None:
    write_project(tmp_path, "sglang-plug-it")
    plugins = find_plugins(PluginOptions(dirs=(str(tmp_path), str(tmp_path))))
    assert [plugin.name for plugin in plugins].count("it") == 1


def test_the_repository_s_own_plugins_are_found_without_installing() -> None:
    assert {"slru", "gpt-neox"} <= set(discovered(dirs=(str(PLUGINS),)))
