"""Body of ``/abort_request``."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from .base import Name, RequestBody
from .misplaced import ABORT, Remedies


class AbortBody(RequestBody):
    """``POST /abort_request``: one request by its id, or all of them."""

    misplaced: ClassVar[Remedies] = ABORT

    rid: Name | None = None
    abort_all: bool = False

    @model_validator(mode="after")
    def _names_something(self) -> AbortBody:
        if not self.rid and not self.abort_all:
            raise ValueError("rid is empty: name a request, or set abort_all")
        return self
