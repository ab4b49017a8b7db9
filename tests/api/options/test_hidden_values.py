"""Passwords in options are hidden."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug_api.options.hidden_values import HIDDEN, shown


@pytest.mark.parametrize(
    ("name", "value", "is_hidden"),
    [
        ("password", "x", True),
        ("SGLANG_PLUG_API_KEY", "x", True),
        ("url", "redis://user:password@host/0", True),
        ("url", "redis://host/0", False),
        ("password", "", False),
        ("rows", 3, False),
        ("access_token", 3, True),
    ],
)
def test_values_that_may_contain_a_password_are_hidden(name: str, value: Any, is_hidden: bool) -> None:
    assert shown(name, value) == (HIDDEN if is_hidden else value)
