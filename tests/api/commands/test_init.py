"""The commands that ship with sglang-plug."""

from __future__ import annotations

from typing import Any


def test_the_commands_are_declared(discover: Any) -> None:
    components = discover(strict=True).all("command")
    assert {component.spec.name for component in components} >= {"serve", "plugins", "version"}
    assert all(component.spec.summary for component in components)
