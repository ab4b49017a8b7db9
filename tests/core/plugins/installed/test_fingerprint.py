"""All processes of a server must load the same plugins."""

from __future__ import annotations

import pytest

from sglang_plug import ConfigError, Plugins
from sglang_plug.plugins.installed.fingerprint import check_engine_plugins, check_same_plugins


def test_the_same_plugins_in_any_order_are_accepted(installed_plugins: Plugins) -> None:
    check_same_plugins(installed_plugins.fingerprint, reversed(installed_plugins.fingerprint), "the engine")
    check_engine_plugins(
        installed_plugins.fingerprint, {"fingerprint": [list(plugin) for plugin in installed_plugins.fingerprint]}
    )


def test_every_difference_is_named(installed_plugins: Plugins) -> None:
    own = list(installed_plugins.fingerprint)
    name, distribution, version = own[0]
    with pytest.raises(ConfigError, match="^rank 1 sees other plugins than the server: ") as caught:
        check_same_plugins(
            installed_plugins.fingerprint,
            [(name, distribution, "0"), *own[1:], ("extra", "extra-plugin", "2")],
            "rank 1",
        )
    message = str(caught.value)
    assert f"{name} {distribution} {version}" in message and f"{name} {distribution} 0" in message
    assert "extra extra-plugin 2" in message and "install the same versions in both environments" in message


def test_an_engine_that_does_not_say_has_none(installed_plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match="the engine sees other plugins than the server"):
        check_engine_plugins(installed_plugins.fingerprint, {})
