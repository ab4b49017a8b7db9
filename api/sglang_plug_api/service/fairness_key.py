"""Tells the callers that share the engine apart, and gives them weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel

from sglang_plug import ConfigError
from sglang_plug_api.options.config import ServerConfig

from .callers import Caller, owner_id
from .preparation import Preparation
from .request_context import RequestContext, deadline_of

AUTO, API_KEY, USER, HEADER = "auto", "api-key", "user", "header:"
ID_PREFIX = b"sglang-plug: caller id\0"
"""Prefix that is hashed with the values that identify a caller, so that its id differs from any other hash of them."""
ID_DIGITS = 32
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0


class FairnessKey:
    """Tells callers apart by the API key, the request's ``user`` or a header, as ``--fairness-key`` says.

    Users and values of headers belong to an API key: the same user of two keys is two callers. Ids are hashes, so that
    the engine knows no key.

    Args:
        kind: ``api-key``, ``user`` or ``header:NAME``; ``auto``: the API key, and ``user`` if the server has none.
        has_keys: True if the server has API keys.

    Raises ``ConfigError`` for another kind.
    """

    def __init__(self, kind: str, *, has_keys: bool) -> None:
        self._kind = (API_KEY if has_keys else USER) if kind == AUTO else kind
        self._header = self._kind.removeprefix(HEADER).strip().lower() if self._kind.startswith(HEADER) else ""
        if self._kind not in (API_KEY, USER) and not self._header:
            raise ConfigError(f"--fairness-key must be {AUTO}, {API_KEY}, {USER} or {HEADER}NAME, not {self._kind!r}")

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
            return {owner_id(key): weight for key, weight in weights.items()}
        owners = ["", *map(owner_id, api_keys)]
        return {_id(owner, key): weight for key, weight in weights.items() for owner in owners}

    def request_context(
        self, caller: Caller, headers: Mapping[str, str], body: BaseModel, *, batch: bool
    ) -> RequestContext:
        """Return the context of a request. A line of a batch counts for the key that created the batch."""
        value: object = None
        if self._header and not batch:
            value = headers.get(self._header)
        elif self._kind == USER and not batch:
            value = getattr(body, "user", None)
        id = _id(caller.owner, value) if isinstance(value, str) and value else caller.owner
        return RequestContext(id, deadline_of(body), is_batch_line=batch, preparation=Preparation())


def with_caller_weights(config: ServerConfig) -> ServerConfig:
    """Return ``config`` with the weights of callers in the engine's part. Raises ``ConfigError``."""
    keys = (*config.api_keys, *((config.admin_api_key,) if config.admin_api_key else ()))
    weights = FairnessKey(config.fairness_key, has_keys=bool(config.api_keys)).weights(config.key_weights, keys)
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
    if not key or not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ConfigError(
            f"--key-weight must be KEY=WEIGHT, with a weight from {MIN_WEIGHT} to {MAX_WEIGHT}, such as KEY=2.5"
        )
    return key, weight
