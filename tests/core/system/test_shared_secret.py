"""Secrets come from a file or from the environment, and short ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug import ConfigError, read_credential, read_shared_secret

VARIABLE = "SGLANG_PLUG_A_SECRET"
LONG = "sixteen bytes or more"


def read(file: str = "", reason: str | None = None) -> bytes:
    return read_shared_secret("store.file", file, VARIABLE, user="the store", sharers="for all", reason=reason)


def test_a_file_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f" {LONG} of a file\n")
    monkeypatch.setenv(VARIABLE, LONG)
    assert read() == read_credential("store.file", "", VARIABLE) == LONG.encode()
    assert read(str(file)) == read_credential("store.file", str(file), VARIABLE) == f"{LONG} of a file".encode()
    with pytest.raises(ConfigError, match=r"^store\.file: .*nothing cannot be read: "):
        read_credential("store.file", str(tmp_path / "nothing"), VARIABLE)


def test_a_missing_or_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read_credential("store.file", "", VARIABLE) == b""
    remedy = f"Set {VARIABLE}, or --set store.file=FILE, to the same secret for all"
    with pytest.raises(ConfigError) as missing:
        read()
    assert str(missing.value) == f"the store needs a secret of at least 16 bytes, which is missing. {remedy}"
    monkeypatch.setenv(VARIABLE, "fifteen letters")
    with pytest.raises(ConfigError) as short:
        read(reason="anyone could write")
    assert str(short.value) == (
        f"the store needs a secret of at least 16 bytes, which has 15 bytes: anyone could write. {remedy}"
    )
