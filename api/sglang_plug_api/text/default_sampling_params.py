"""Validation of ``--preferred-sampling-params`` at the start, because an error would affect every request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sglang_plug import ConfigError
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug.system.hints import did_you_mean
from sglang_plug_api.answers.errors import ApiError, from_validation
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.protocol.base import validation_context
from sglang_plug_api.protocol.native import SamplingBody
from sglang_plug_api.protocol.sampling import SAMPLING

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
"""Facts of a model without limits: at the start it is not known which lengths and token ids the model allows."""


def default_sampling_params(params: Mapping[str, Any], fields: RequestFields | None = None) -> dict[str, Any]:
    """``params`` with values of the right types; ``fields`` are those of logits processors.

    Raises ``ConfigError`` for what would be refused or do nothing.
    """
    fields = RequestFields() if fields is None else fields
    for name in params:
        if name not in NAMES and name not in fields.names:
            near = did_you_mean(name, NAMES | fields.names)
            raise ConfigError(f"no native sampling parameter is named {name!r}{near}")
    try:
        sampling = SamplingBody.model_validate(params, context=validation_context(fields)).sampling()
        SamplingDefaults(ServerConfig(), ANY_MODEL, (), fields).complete(sampling, 0, None)
    except ValidationError as error:
        raise ConfigError(str(from_validation(error)).replace("Input should be", "must be")) from error
    except ApiError as error:
        raise ConfigError(str(error)) from error
    return sampling
