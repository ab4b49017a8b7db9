"""Errors about mistakes in a declaring module say what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_plug import PluginOptions, Plugins
from sglang_plug.config import ConfigError

Install = Callable[..., Path]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("api_version = 0", "needs plugin API 0, this is API 1; install a newer version of the plugin"),
        ("api_version = 2", "needs plugin API 2, this is API 1; install a newer sglang-plug"),
        ("api_version = '1'", "needs plugin API '1', this is API 1; api_version must be a whole number"),
        (
            "def register_models():\n    return []",
            "defines register_models() without @hookimpl, so it would never be called",
        ),
        (
            "@hookimpl\ndef register_models(config):\n    return []",
            "register_models() asks for 'config', but is given no arguments",
        ),
        (
            "@hookimpl\ndef choose_component(kind, fact):\n    return None",
            "choose_component() asks for 'fact', but is given only: kind, facts",
        ),
        (
            "@hookimpl\ndef register_model():\n    return []",
            "unknown hook 'register_model'; did you mean 'register_models'?",
        ),
        (
            "@hookimpl\ndef register_models():\n    [ModelSpec(name='M', target='m:M')]",
            "register_models() must return a list of ModelSpec or yield them, not NoneType",
        ),
        ("@hookimpl\ndef zzz():\n    return []", "unknown hook 'zzz'; the nearest hook names are "),
        (
            "@hookimpl\ndef register_models():\n    return ModelSpec(name='M', target='m:M')",
            "register_models() must return a list of ModelSpec or yield them, not ModelSpec",
        ),
        (
            "@hookimpl\ndef register_models():\n    return [EvictionSpec(name='M', target='m:M')]",
            "which is not a ModelSpec",
        ),
        (
            "@hookimpl\ndef register_models():\n    return [ModelSpec(name='M', target='m')]",
            "ModelSpec('M'): target must be",
        ),
    ],
)
def test_a_mistake_is_told_with_its_remedy_and_the_rest_goes_on(install: Install, source: str, message: str) -> None:
    install("sglang-wrong", source)
    plugins = Plugins.discover()
    (failure,) = plugins.failures
    assert message in str(failure) and str(failure).startswith("plugin 'sglang-wrong' of sglang-wrong 1.0 failed: ")
    assert plugins.get("eviction", "lru").plugin.distribution == "sglang-plug"


@pytest.mark.parametrize(
    "source",
    [
        "api_version = 1",
        "@hookimpl\ndef choose_component(facts):\n    return None",
        "@hookimpl\ndef choose_component(kind, facts, spare=3):\n    return None",
        "@hookimpl(optionalhook=True)\ndef not_there_yet(what):\n    return None",
        "from sglang_plug.plugins.hookspecs import register_models",
    ],
)
def test_what_is_allowed(install: Install, source: str) -> None:
    install("sglang-right", source)
    plugins = Plugins.discover()
    assert not plugins.failures and plugins.fingerprint[-1][0] == "sglang-right"


def test_a_choice_that_is_no_name_is_told(install: Install) -> None:
    install("sglang-odd", "@hookimpl\ndef choose_component(kind):\n    return 5")
    from sglang_plug import Facts

    with pytest.raises(ConfigError, match="'sglang-odd:sglang-odd' chose 5 as eviction; .* a name or None"):
        Plugins.discover().choose("eviction", Facts())


def test_settings_that_are_no_dataclass_are_told(install: Install) -> None:
    source = "@hookimpl\ndef register_cache_policies():\n"
    source += "    yield EvictionSpec(name='g', target='x:y', settings='builtins:dict')"
    install("sglang-plain", source)
    with pytest.raises(ConfigError, match="eviction 'g' from sglang-plain 1.0 .*'builtins:dict' must be a dataclass"):
        Plugins.discover().get("eviction", "g").settings()


def test_what_a_plugin_prints_stays_out_of_a_command_s_output(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("sglang-chatty", "print('hello')\n@hookimpl\ndef register_models():\n    print('again')\n    return []")
    Plugins.discover(PluginOptions())
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "hello\nagain\n"
