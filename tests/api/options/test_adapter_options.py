"""The options of adapters, from the command line, a file and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug import ConfigError, Plugins
from sglang_plug.config import AdapterOptions
from sglang_plug.plugins.flags import plugin_flags
from sglang_plug.system.command_line import Parser
from sglang_plug_api.options.parsing import add_arguments, server_config


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return Plugins.discover()


def adapters(plugins: Plugins, *argv: str) -> AdapterOptions:
    parser = Parser(prog="sglang-plug serve", parents=[plugin_flags()])
    add_arguments(parser, plugins)
    return server_config(parser.parse_args(list(argv)), plugins).engine.adapters


def test_several_stand_in_a_row_or_are_repeated(plugins: Plugins) -> None:
    options = adapters(plugins, "--lora-paths", "a=/x", "/b", "--lora-modules", "c=/z", "--max-loras", "2")
    assert options == AdapterOptions(paths=("a=/x", "/b", "c=/z"), max_per_batch=2)
    assert adapters(plugins, "--enable-lora", "--max-loaded-loras", "3") == AdapterOptions(enabled=True, max_loaded=3)
    assert adapters(plugins) == AdapterOptions()


def test_files_and_the_environment_have_them_too(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("lora-paths:\n  - a=/x\n  - b=/y\n")
    assert adapters(plugins, "--config", str(file)).paths == ("a=/x", "b=/y")
    monkeypatch.setenv("SGLANG_PLUG_LORA_PATHS", "c=/z,d=/w")
    assert adapters(plugins).paths == ("c=/z", "d=/w")


@pytest.mark.parametrize("flag", ["--max-loras-per-batch", "--max-loaded-loras"])
def test_none_at_all_is_refused(plugins: Plugins, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag}.*greater than or equal to 1"):
        adapters(plugins, flag, "0")
