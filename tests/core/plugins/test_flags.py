"""The flags that select plugins: command line over environment over file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.config import ConfigError, PluginOptions
from sglang_plug.plugins.flags import read_config_file, read_plugin_flags


def written(folder: Path, text: str) -> str:
    file = folder / "server.yaml"
    file.write_text(text)
    return str(file)


def test_flags_become_options_wherever_they_stand() -> None:
    argv = "--plugins a,b serve --block-plugin c --plugin f.py --port 1 --plugins-dir d --strict-plugins".split()
    options, _, rest = read_plugin_flags([*argv, "--prefer", "eviction:lru=x", "--set", "lru.size=3"], {})
    assert options == PluginOptions(
        allow=("a", "b"),
        block=("c",),
        files=("f.py",),
        dirs=("d",),
        prefer={"eviction:lru": "x"},
        strict=True,
        settings={"lru": {"size": "3"}},
    )
    assert rest == ["serve", "--port", "1"]


def test_repeated_flags_add_up() -> None:
    options, _, _ = read_plugin_flags(["--block-plugin", "a", "--block-plugin", "b,c", "--plugins=d"], {})
    assert (options.block, options.allow) == (("a", "b", "c"), ("d",))


def test_blanks_and_empty_names_are_dropped() -> None:
    assert read_plugin_flags([], {"SGLANG_PLUG_PLUGINS": " a, b,,"})[0].allow == ("a", "b")


def test_a_file_name_may_hold_a_comma() -> None:
    assert read_plugin_flags(["--plugin", "a,b.py"], {})[0].files == ("a,b.py",)


def test_command_line_before_environment_before_file(tmp_path: Path) -> None:
    config = written(tmp_path, "plugins: [file]\nblock-plugin: file\nstrict_plugins: true\nplugins-dir: folder\n")
    environment = {"SGLANG_PLUG_PLUGINS": "one,two", "SGLANG_PLUG_BLOCK_PLUGIN": "", "SGLANG_PLUG_CONFIG": config}
    options, flags, _ = read_plugin_flags(["--no-strict-plugins"], environment)
    assert options == PluginOptions(allow=("one", "two"), block=("file",), dirs=("folder",))
    assert flags.config == config
    assert read_plugin_flags(["--plugins", "flag"], environment)[0].allow == ("flag",)


def test_settings_of_file_and_flags_are_merged_by_key(tmp_path: Path) -> None:
    config = written(tmp_path, "set:\n  lru:\n    size: 1\n    share: 0.5\nprefer:\n  eviction:lru: file\n")
    options, _, _ = read_plugin_flags(["--config", config, "--set", "lru.size=2", "--set", "a.b.c=d=e"], {})
    assert options.settings == {"lru": {"size": "2", "share": 0.5}, "a.b": {"c": "d=e"}}
    assert options.prefer == {"eviction:lru": "file"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--set", "lru"], "--set 'lru': must look like NAME.KEY=VALUE"),
        (["--set", "lru=1"], "NAME.KEY=VALUE"),
        (["--prefer", "eviction:lru"], "--prefer 'eviction:lru': must look like KIND:NAME=DISTRIBUTION"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--plugin"], "--plugin: expected one argument"),
    ],
)
def test_malformed_flags_are_explained(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_plugin_flags(argv, {})
    assert message in str(caught.value)


def test_a_malformed_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"SGLANG_PLUG_STRICT_PLUGINS: must be true or false, got 'maybe'"):
        read_plugin_flags([], {"SGLANG_PLUG_STRICT_PLUGINS": "maybe"})
    assert read_plugin_flags([], {"SGLANG_PLUG_STRICT_PLUGINS": "1"})[0].strict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- port", "must hold 'key: value' lines, not a list"),
        ("port: [", "is not YAML"),
        ("max-total-tokens: 1\nmax_total_tokens: 2", "'max_total_tokens' is given twice"),
        ("port: 1\nmodel: a\nport: 2", "'port' is given twice"),
        ("set:\n  a:\n    size: 1\n    size: 2", "'size' is given twice"),
    ],
)
def test_a_malformed_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config_file(written(tmp_path, text))
    assert message in str(caught.value)


def test_names_in_a_file_must_be_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="block_plugin: must be a name or a list of names, got 3"):
        read_plugin_flags(["--config", written(tmp_path, "block_plugin: 3")], {})


def test_an_empty_file_and_empty_values_say_nothing(tmp_path: Path) -> None:
    assert read_config_file(written(tmp_path, "# nothing\n")) == {}
    assert read_config_file(written(tmp_path, "port:\nhost: a\n")) == {"host": "a"}
