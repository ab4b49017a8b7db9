"""The caller of a request: each API key is a tenant of its own, and sees only what was made with that key.

A context variable holds the caller of a request, so that plugin routes, the tasks that a request starts and the lines
of a batch have it without passing it on. ``auth.guard`` sets it for every route.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from sglang_plug_api.options.config import ServerConfig

OWNER_PREFIX = b"sglang-plug: owner id of an API key\0"
"""Prefix that is hashed with a key, so that the owner id differs from any other hash of the key."""
OWNER_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. Without API keys everybody is the same caller."""

    owner: str = ""
    """Id of the API key: it reveals nothing about the key and is the same after a restart. Empty without a key."""
    can_access_all: bool = True
    """True if the caller may use files and batches of other owners."""

    @property
    def scope(self) -> str | None:
        """The owner whose files and batches the caller may use; ``None``: any owner."""
        return None if self.can_access_all else self.owner

    def may_use(self, owner: str) -> bool:
        """Return True if the caller may use files and batches of ``owner``."""
        return self.can_access_all or self.owner == owner


ANONYMOUS = Caller()
_current: ContextVar[Caller] = ContextVar("caller", default=ANONYMOUS)


def current_caller() -> Caller:
    """Return the caller of the request that is being served."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Serve the rest of this request for ``caller``."""
    _current.set(caller)


@contextlib.contextmanager
def acting_as(caller: Caller) -> Iterator[None]:
    """Run the block as ``caller``."""
    before = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(before)


class Callers:
    """Lookup of the caller that each API key of the server stands for."""

    def __init__(self, config: ServerConfig) -> None:
        self._one_tenant = not config.api_keys
        self._all_see_all = self._one_tenant or config.shared_storage
        self._admin = owner_id(config.admin_api_key) if config.admin_api_key else None
        self._keys = (*config.api_keys, *((config.admin_api_key,) if config.admin_api_key else ()))
        self._callers = {key: self.of_owner(owner_id(key)) for key in self._keys}

    @property
    def scoped(self) -> bool:
        """True if some callers may see only their own files and batches."""
        return not self._all_see_all

    def known_keys(self, offered: Iterable[bytes]) -> list[str]:
        """Return the server's keys among the keys of a request, in the request's order."""
        pairs = [(key, hmac.compare_digest(sent, key.encode())) for sent in offered for key in self._keys]
        return [key for key, same in pairs if same]  # every pair is compared, so that timing reveals nothing

    def of_keys(self, known: Sequence[str]) -> Caller:
        """Return the caller of the first of these server keys. A caller without a key owns nothing."""
        return self.of_owner("") if self._one_tenant or not known else self._callers[known[0]]

    def of_owner(self, owner: str) -> Caller:
        """Return the caller with this owner id, for example the one that a batch runs for."""
        if self._one_tenant:
            return Caller(owner)
        return Caller(owner, can_access_all=self._all_see_all or owner == self._admin)


def owner_id(key: str) -> str:
    """Return the owner id that an API key's files and batches are stored under."""
    return hashlib.sha256(OWNER_PREFIX + key.encode()).hexdigest()[:OWNER_DIGITS]
