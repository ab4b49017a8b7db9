"""The operating system's limit of open files, which is the limit of connections."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

RESERVED = 128
"""Open files left for everything but connections: sockets of the engine, stored files, imports."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one; many systems start with 1,024 of 500,000."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS has a lower limit than its hard limit says
        logger.warning("the limit of %d open files could not be raised: %s", soft, error)
        return
    logger.debug("the limit of open files was raised from %d to %d", soft, hard)


def max_connections(limit: int) -> int:
    """Return ``limit``, or as many connections as the limit of open files allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limit
    return max(1, min(limit, soft - min(RESERVED, soft // 2)))
