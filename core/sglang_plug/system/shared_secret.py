"""Secrets that several servers share: from a file, or from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from sglang_plug.config import ConfigError

MIN_BYTES = 16


def read_credential(setting: str, file: str, variable: str) -> bytes:
    """Return the content of ``file``, or that of an environment variable if ``file`` is empty; empty if there is none.

    Raises ``ConfigError``, which names ``setting``, if the file cannot be read.
    """
    if not file:
        return os.environ.get(variable, "").encode()
    try:
        return Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{setting}: {file} cannot be read: {error}") from error


def read_shared_secret(
    setting: str, file: str, variable: str, *, user: str, sharers: str, reason: str | None = None
) -> bytes:
    """Return a secret as ``read_credential`` does. Raises ``ConfigError`` if there is none, or if it is short.

    Args:
        setting: the setting with the name of the file, such as ``redis.secret_file``.
        file: the value of the setting.
        variable: the variable of the environment that has the secret if ``file`` is empty.
        user: what needs the secret, for errors.
        sharers: who must have the same secret, such as ``all engines``, for errors.
        reason: why it is needed, for errors.
    """
    secret = read_credential(setting, file, variable)
    if len(secret) < MIN_BYTES:
        problem = f"has {len(secret)} bytes" if secret else "is missing"
        because = "" if reason is None else f": {reason}"
        raise ConfigError(
            f"{user} needs a secret of at least {MIN_BYTES} bytes, which {problem}{because}. Set {variable}, or "
            f"--set {setting}=FILE, to the same secret {sharers}"
        )
    return secret
