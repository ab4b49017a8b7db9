"""Tests of the built-in routes: each can be built, and has the expected level of authentication."""

from __future__ import annotations

from typing import Any

from sglang_plug import Plugins, RouteSpec


def test_every_built_in_route_can_be_built(app: Any) -> None:
    plugins = Plugins.discover()
    levels: dict[str, str] = {}
    for name in plugins.names("route"):
        component = plugins.get("route", name)
        assert isinstance(component.spec, RouteSpec)
        assert component.load()(app.engine).routes, name
        levels[name] = component.spec.auth
    assert {name for name, level in levels.items() if level == "public"} == {"health", "metrics", "playground"}
    assert levels["admin"] == "admin"
    assert {"chat", "completions", "generate", "models", "info", "docs"} <= levels.keys()
