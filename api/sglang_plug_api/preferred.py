"""What ``--preferred-sampling-params`` may say: checked at the start, because it would be wrong for every request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sglang_plug import ConfigError
from sglang_plug.command_line import did_you_mean

from .config import ServerConfig
from .errors import ApiError, from_validation
from .protocol.native import SamplingBody
from .protocol.sampling import SAMPLING
from .sampling import SamplingDefaults

NAMES = frozenset(SAMPLING) & frozenset(SamplingBody.model_fields)
UNBOUNDED = 1 << 62
ANY_MODEL: Mapping[str, Any] = {
    "generation": {},
    "eos_token_ids": (),
    "context_length": UNBOUNDED,
    "max_total_tokens": UNBOUNDED,
    "vocab_size": UNBOUNDED,
}
"""How long outputs may be, and which tokens there are, is the model's to say."""


def preferred_sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with values of the right types. Raises ``ConfigError`` for what would be refused or do nothing."""
    for name in given:
        if name not in NAMES:
            raise ConfigError(f"no native sampling parameter is named {name!r}{did_you_mean(name, NAMES)}")
    try:
        found = SamplingBody.model_validate(given).sampling()
        SamplingDefaults(ServerConfig(), ANY_MODEL, ()).complete(found, 0, None)
    except ValidationError as error:
        raise ConfigError(str(from_validation(error)).replace("Input should be", "must be")) from error
    except ApiError as error:
        raise ConfigError(str(error)) from error
    return found
