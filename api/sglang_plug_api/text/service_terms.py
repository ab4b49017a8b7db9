"""The terms on which a request is served: the caller that it counts for, and its deadline.

Like the caller of ``http.callers``, the terms of a request are in a context variable, so that every ``Job`` of every
route has them. ``http.request_body`` sets them from the body and the headers of the request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

from pydantic import BaseModel

from sglang_plug import ConfigError
from sglang_plug.contracts.serving.observer import DeadlineOutcome
from sglang_plug_api.http.callers import Caller, owner_of
from sglang_plug_api.options.config import ServerConfig

API_KEY, USER, HEADER = "api-key", "user", "header:"
ID_PREFIX = b"sglang-plug: caller id\0"
"""Prefix that is hashed with the values that identify a caller, so that its id differs from any other hash of them."""
ID_DIGITS = 32
DEADLINE_STATUS = 504
"""Status of the refusal of a request that would miss its deadline."""


@dataclass(frozen=True, slots=True)
class ServiceTerms:
    """The terms of one request."""

    caller: str | None = None
    """Id that the engine knows the caller by; ``None``: the owner id of the API key."""
    deadline_ms: int | None = None
    """Milliseconds from the arrival in which the output should be complete; ``None``: whenever it is."""


PLAIN = ServiceTerms()
_current: ContextVar[ServiceTerms] = ContextVar("service_terms", default=PLAIN)


def current_terms() -> ServiceTerms:
    """Return the terms of the request that is being served."""
    return _current.get()


def set_terms(terms: ServiceTerms) -> None:
    """Serve the rest of this request on ``terms``."""
    _current.set(terms)


def deadline_of(body: BaseModel) -> int | None:
    """Return the deadline that a body sets, in milliseconds."""
    value = getattr(body, "deadline_ms", None) if "deadline_ms" in type(body).model_fields else None
    return value if isinstance(value, int) else None


def deadline_outcome(deadline: float | None, finished: float, reason: str, refused: int) -> DeadlineOutcome:
    """Return what became of a deadline. A client that left before it neither met nor missed it.

    Args:
        deadline: ``None`` if there is none.
        finished: when the request ended.
        reason: why the output ended; empty if it did not.
        refused: the status that the request was refused with, or 0.
    """
    if deadline is None:
        return ""
    if refused == DEADLINE_STATUS:
        return "refused"
    if finished > deadline or refused:
        return "missed"
    return "met" if reason in ("stop", "length") else ""


class FairnessKey:
    """Tells callers apart by the API key, the request's ``user`` or a header, as ``--fairness-key`` says.

    Users and values of headers belong to an API key: the same user of two keys is two callers. Ids are hashes, so that
    the engine knows no key.

    Args:
        kind: ``api-key``, ``user`` or ``header:NAME``.

    Raises ``ConfigError`` for another kind.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._header = self._kind.removeprefix(HEADER).strip().lower() if self._kind.startswith(HEADER) else ""
        if self._kind not in (API_KEY, USER) and not self._header:
            raise ConfigError(f"--fairness-key must be {API_KEY}, {USER} or {HEADER}NAME, not {self._kind!r}")

    def weights(self, texts: Iterable[str], api_keys: Sequence[str]) -> dict[str, float]:
        """Return the weights of ``KEY=WEIGHT`` by the ids of callers. Raises ``ConfigError``, which shows no key.

        Args:
            texts: each with a key of this kind: an API key, a user or the value of the header.
            api_keys: all keys of the server.
        """
        weights = dict(map(_weight, texts))
        if self._kind == API_KEY:
            if unknown := [key for key in weights if key not in api_keys]:
                raise ConfigError(f"--key-weight has {len(unknown)} keys that are not among those of --api-key")
            return {owner_of(key): weight for key, weight in weights.items()}
        owners = ["", *map(owner_of, api_keys)]
        return {_id(owner, key): weight for key, weight in weights.items() for owner in owners}

    def terms(self, caller: Caller, headers: Mapping[str, str], body: BaseModel, *, batch: bool) -> ServiceTerms:
        """Return the terms of a request. A line of a batch counts for the key that created the batch."""
        value: object = None
        if self._header and not batch:
            value = headers.get(self._header)
        elif self._kind == USER and not batch:
            value = getattr(body, "user", None)
        id = _id(caller.owner, value) if isinstance(value, str) and value else caller.owner
        return ServiceTerms(id, deadline_of(body))


def with_caller_weights(config: ServerConfig) -> ServerConfig:
    """Return ``config`` with the weights of callers in the engine's part. Raises ``ConfigError``."""
    keys = (*config.api_keys, *((config.admin_api_key,) if config.admin_api_key else ()))
    weights = FairnessKey(config.fairness_key).weights(config.key_weights, keys)
    schedule = replace(config.engine.schedule, caller_weights=weights)
    return replace(config, engine=replace(config.engine, schedule=schedule))


def _id(owner: str, value: str) -> str:
    """Return the id of the caller that an API key's requests name with ``value``."""
    content = b"\0".join((owner.encode(), value.encode("utf-8", "surrogatepass")))
    return hashlib.sha256(ID_PREFIX + content).hexdigest()[:ID_DIGITS]


def _weight(text: str) -> tuple[str, float]:
    """Return the key and the weight of ``KEY=WEIGHT``. Raises ``ConfigError``, which does not show the key."""
    key, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = 0.0
    if not key or not 0 < weight < float("inf"):
        raise ConfigError("--key-weight must be KEY=WEIGHT, with a weight above 0, such as KEY=2.5")
    return key, weight
