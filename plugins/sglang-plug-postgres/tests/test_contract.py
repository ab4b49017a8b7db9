"""The store keeps the contract, and names what is wrong with its own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_plug.testing import check_store


def test_it_keeps_the_contract(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_plug_postgres.example import VARIABLE, open_store

    monkeypatch.setenv(VARIABLE, server.url)
    check_store(open_store)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schema": ""}, "schema is ''"),
        ({"schema": "x" * 64}, "1 to 63 bytes"),
        ({"connections": 0}, "at least 1"),
        ({"timeout": 0.0}, "more than 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    from sglang_plug_postgres.settings import Settings

    with pytest.raises(ValueError, match=message):
        Settings(**settings)


def test_declaring_imports_no_driver() -> None:
    import subprocess
    import sys

    program = "import sys, sglang_plug_postgres; print(any(name.startswith('psycopg') for name in sys.modules))"
    path = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", program], cwd=path, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
