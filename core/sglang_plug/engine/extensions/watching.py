"""Step extensions in the watchdog's thread, where an error of an extension must not end the watchdog."""

from __future__ import annotations

import logging

from sglang_plug.contracts.extension.sampling_phases import BlockingRequest

from .points import ExtensionPoints

logger = logging.getLogger(__name__)


def let_look(extensions: ExtensionPoints) -> None:
    """Let the extensions interrupt what takes too long in a step."""
    for look in extensions.look:
        try:
            look()
        except Exception:
            logger.exception("a step extension failed in the watchdog's thread")


def find_blocking_request(extensions: ExtensionPoints) -> BlockingRequest | None:
    """Return the request that blocks a step, if an extension knows it."""
    for blocking_request in extensions.blocking_request:
        try:
            request = blocking_request()
        except Exception:
            logger.exception("a step extension failed in the watchdog's thread")
            continue
        if request is not None:
            return request
    return None
