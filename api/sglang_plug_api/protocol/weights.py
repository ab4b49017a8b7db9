"""Bodies of ``/update_weights_from_disk`` and ``/update_weight_version``."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from .base import RequestBody
from .misplaced import WEIGHTS, Remedies

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
"""Pattern of names without control characters: names are logged, and line breaks could forge lines of the log."""


class UpdateWeightsBody(RequestBody):
    """``POST /update_weights_from_disk``: a checkpoint of the same shape as the served one."""

    misplaced: ClassVar[Remedies] = WEIGHTS

    model_path: str = Field(min_length=1, max_length=4096, pattern=PRINTABLE)
    revision: str | None = Field(None, max_length=256, pattern=PRINTABLE)
    load_format: str | None = None
    """Accepted for older clients; the format is found out."""
    abort_all_requests: bool = False
    """End what is in flight instead of waiting for it."""
    weight_version: str | None = Field(None, max_length=256, pattern=PRINTABLE)
    """Reported by ``/model_info`` and in answers from now on."""


class WeightVersionBody(RequestBody):
    """``POST /update_weight_version``: another name for the weights that are served."""

    new_version: str = Field(min_length=1, max_length=256, pattern=PRINTABLE)
    abort_all_requests: bool = True
    """End the requests in flight, so that none has tokens of both versions."""
