"""``serve`` builds the configuration and passes it to the server."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from sglang_plug import Plugins, launch_server
from sglang_plug.__main__ import main
from sglang_plug_api.options.config import ServerConfig

Served = list[tuple[ServerConfig, Plugins]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """Arguments of the calls of ``serve``, which is replaced by a stub that returns exit status 5."""
    calls: Served = []
    stub = ModuleType("sglang_plug_api.lifecycle.server")
    stub.serve = lambda config, plugins: calls.append((config, plugins)) or 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    return calls


def test_the_configuration_reaches_the_server(served: Served, plugin_file: Any) -> None:
    file = plugin_file("idle", "")
    argv = ["--plugin", file, "serve", "org/name", "--port", "0", "--page-size=16", "--set", "lru.size=1"]
    assert main(argv[:-2]) == 5
    config, plugins = served[0]
    assert (config.engine.model.path, config.port, config.engine.cache.page_size) == ("org/name", 0, 16)
    assert config.engine.plugins == plugins.options
    assert config.engine.plugins.files == (file,)


def test_launch_server_equals_serve(served: Served) -> None:
    argv = ["--model-path", "m", "--disable-radix-cache", "--api-key", "secret"]
    assert main(["serve", *argv]) == launch_server.main(argv) == 5
    assert served[0][0] == served[1][0]
    assert served[0][0].engine.cache.prefix_cache == "none"


def test_a_broken_plugin_is_one_line(served: Served, plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = plugin_file("broken", "raise RuntimeError('first line\\nsecond line')")
    assert main(["serve", "--plugin", file]) == 5
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: plugin 'broken' of ")
    assert warnings[0].endswith("failed: RuntimeError: first line second line")


def test_a_wrong_option_starts_no_server(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "70000"]) == 2
    assert main(["serve", "--eviction-policy", "lruu"]) == 2
    assert served == []
    errors = capsys.readouterr().err
    assert "--port: must be less than or equal to 65535" in errors
    assert "--eviction-policy: no eviction named 'lruu'; did you mean 'lru'?" in errors


def test_a_typo_in_settings_counts_though_nobody_uses_the_component(
    served: Served, plugin_file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source = """
        import dataclasses
        @dataclasses.dataclass
        class Knobs:
            size: int = 3
        @hookimpl
        def register_cache_policies():
            yield EvictionSpec(name="idle", target="no_such:Thing", settings=f"{__name__}:Knobs")
    """
    file = plugin_file("idle", source)
    assert main(["serve", "--plugin", file, "--set", "idle.sise=4"]) == 2
    assert "'idle' has no setting 'sise'; did you mean 'size'?" in capsys.readouterr().err
    assert main(["serve", "--plugin", file, "--set", "idle.size=4"]) == 5


def test_a_plugin_that_takes_long_to_load_is_named(
    served: Served, plugin_file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plugin_file("sleepy", "import time\nend = time.process_time() + 1.1\nwhile time.process_time() < end: pass")
    assert main(["serve", "--plugin", file]) == 5
    warning = capsys.readouterr().err
    assert (
        warning.startswith("warning: plugin 'sleepy' of ")
        and "s while it was loaded, which delays every command" in warning
    )
    assert main(["plugins", "check", "sleepy", "--plugin", file]) == 1
    assert "problem  plugin 'sleepy' of " in capsys.readouterr().out
