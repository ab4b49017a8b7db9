"""The commands that ship with sglang-plug."""

from __future__ import annotations

from typing import Any


def test_the_commands_are_declared(discover: Any) -> None:
    components = discover(strict=True).all("command")
    assert {one.spec.name for one in components} >= {"serve", "plugins", "version"}
    assert all(one.spec.summary for one in components)
