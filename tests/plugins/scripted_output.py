"""A plugin that makes a model generate given tokens: token ``i`` of an output is ``say[i]``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsProcessorSpec, LogitsRow, ProcessorRequest, hookimpl

LIKELY = 1e4


@hookimpl
def register_logits_processors() -> Iterator[LogitsProcessorSpec]:
    yield LogitsProcessorSpec(name="say", target=f"{__name__}:Saying", request_fields=f"{__name__}:Fields", order=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The request field ``say``."""

    say: list[int] | None = None


class Saying(LogitsProcessor):
    """A logits processor that depends only on the position of a token."""

    def prepare(self, request: ProcessorRequest) -> list[int] | None:
        say: list[int] | None = request.fields.say
        return say

    def is_done(self, state: list[int], generated: int) -> bool:
        return generated >= len(state)

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        return SayingBatch([row.state for row in rows])


class SayingBatch(LogitsBatch):
    """The state of a batch: the rows and their scripted tokens."""

    def __init__(self, scripts: Sequence[Sequence[int]]) -> None:
        self._scripts = scripts

    def apply(self, logits: Any, generated: Sequence[int]) -> Any:
        for row, (script, count) in enumerate(zip(self._scripts, generated, strict=True)):
            if count < len(script):
                logits[row, script[count]] += LIKELY
        return logits
