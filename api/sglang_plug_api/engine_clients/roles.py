"""The options of prefill servers and decode servers: ``--role``, ``--prefill-port`` and ``--prefill-servers``."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from sglang_plug import ConfigError
from sglang_plug_api.options.config import DEFAULT_PREFILL_PORT, ServerConfig

from .transfer_secret import TRANSFER

SCHEME = "tcp"


@dataclass(frozen=True, slots=True)
class PrefillAddress:
    """The address at which a prefill server listens for decode servers."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if it is on this machine."""
        return _is_loopback(self.host)


def check_role(config: ServerConfig) -> None:
    """Raise ``ConfigError`` for options that do not belong to the role of the server."""
    if config.role and config.prefill_replicas:
        raise ConfigError(
            f"--role {config.role} and --prefill-replicas contradict each other: one makes a server of one role, the "
            "other one a server that has engines of both"
        )
    if config.prefill_servers and config.role != "decode":
        raise ConfigError("--prefill-servers is for a server that generates: add --role decode, or leave it out")
    if config.role == "decode":
        if not config.prefill_servers:
            raise ConfigError(
                "--role decode needs servers that compute its prompts: name them with --prefill-servers HOST:PORT"
            )
        _check_reachable(config)


def prefill_addresses(config: ServerConfig) -> list[PrefillAddress]:
    """Return the addresses of ``--prefill-servers``. Raises ``ConfigError`` for one that is none."""
    return [_address(text) for text in config.prefill_servers]


def listening_address(host: str) -> str:
    """Return the address of this machine that ``host`` names. Raises ``ConfigError`` if there is none."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error}; choose another --host") from error
    return str(addresses[0][4][0])


def _address(text: str) -> PrefillAddress:
    try:
        parts = urlsplit(text if "://" in text else f"{SCHEME}://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"--prefill-servers {text}: {error}") from error
    if not host or parts.scheme != SCHEME or parts.path or parts.query or parts.username is not None or port == 0:
        raise ConfigError(
            f"--prefill-servers {text}: must be HOST:PORT, with the host and the --prefill-port of a prefill server"
        )
    return PrefillAddress(host, port or DEFAULT_PREFILL_PORT)


def _check_reachable(config: ServerConfig) -> None:
    """Raise ``ConfigError`` if prefill servers on other machines would send prompts to their own loopback address."""
    stores, settings = config.engine.cache.kv_stores, config.engine.plugins.settings.get(TRANSFER, {})
    if stores and TRANSFER not in stores:
        return
    away = [address for address in prefill_addresses(config) if not address.is_loopback]
    if away and _is_loopback(str(settings.get("host", "127.0.0.1"))):
        raise ConfigError(
            f"the prefill server {away[0]} may be on another machine, and this one would receive prompts on its "
            "loopback address only: give it one that prefill servers reach, such as --set transfer.host=eth0"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
