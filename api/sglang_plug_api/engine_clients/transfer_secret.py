"""The secret that engines share which send prompts to each other."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace

from sglang_plug import EngineConfig, read_shared_secret
from sglang_plug.system.private_folder import PrivateFolder, private_folder

TRANSFER = "transfer"
"""The KV store that prompts are sent with, unless others are named."""
VARIABLE, SETTING = "SGLANG_PLUG_TRANSFER_SECRET", "secret_file"


def with_transfer_store(engine: EngineConfig) -> EngineConfig:
    """Return ``engine`` with the store ``transfer``, unless it names stores."""
    return engine if engine.cache.kv_stores else replace(engine, cache=replace(engine.cache, kv_stores=(TRANSFER,)))


def has_secret(engine: EngineConfig) -> bool:
    """Report whether the user has given a secret."""
    return bool(os.environ.get(VARIABLE) or _file(engine))


def read_secret(engine: EngineConfig, role: str) -> bytes:
    """Return the secret that the user has given. Raises ``ConfigError`` if there is none, or if it is short."""
    return read_shared_secret(
        f"{TRANSFER}.{SETTING}",
        _file(engine),
        VARIABLE,
        user=f"--role {role}",
        sharers="on all prefill and decode servers",
    )


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
