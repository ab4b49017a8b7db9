"""The secret that engines share which send prompts to each other."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

from sglang_plug import ConfigError, EngineConfig
from sglang_plug.system.private_folder import PrivateFolder, private_folder

TRANSFER = "transfer"
"""The KV store that prompts are sent with, unless others are named."""
VARIABLE, SETTING = "SGLANG_PLUG_TRANSFER_SECRET", "secret_file"
LEAST_BYTES = 16


def with_transfer_store(engine: EngineConfig) -> EngineConfig:
    """Return ``engine`` with the store ``transfer``, unless it names stores."""
    return engine if engine.cache.kv_stores else replace(engine, cache=replace(engine.cache, kv_stores=(TRANSFER,)))


def has_secret(engine: EngineConfig) -> bool:
    """Report whether the user has given a secret."""
    return bool(os.environ.get(VARIABLE) or _file(engine))


def read_secret(engine: EngineConfig, role: str) -> bytes:
    """Return the secret that the user has given. Raises ``ConfigError`` if there is none, or if it is short."""
    file = _file(engine)
    try:
        secret = Path(file).read_bytes().strip() if file else os.environ.get(VARIABLE, "").encode()
    except OSError as error:
        raise ConfigError(f"transfer.secret_file: {file} cannot be read: {error}") from error
    if len(secret) < LEAST_BYTES:
        problem = f"has {len(secret)} bytes" if secret else "is missing"
        raise ConfigError(
            f"--role {role} needs a secret of at least {LEAST_BYTES} bytes, which {problem}. Set {VARIABLE}, or --set "
            "transfer.secret_file=FILE, to the same secret on all prefill and decode servers"
        )
    return secret


def new_secret() -> PrivateFolder:
    """Return a folder with a file ``secret`` that has a random secret; only this user can read it."""
    folder = private_folder("sglang-plug-secret-")
    (folder.path / "secret").write_text(secrets.token_hex(32), encoding="ascii")
    return folder


def with_secret(engine: EngineConfig, folder: PrivateFolder) -> EngineConfig:
    """Return ``engine`` with the secret in ``folder``."""
    settings = engine.plugins.settings
    changed = {**settings, TRANSFER: {**settings.get(TRANSFER, {}), SETTING: str(folder.path / "secret")}}
    return replace(engine, plugins=replace(engine.plugins, settings=changed))


def _file(engine: EngineConfig) -> str:
    return str(engine.plugins.settings.get(TRANSFER, {}).get(SETTING, ""))
