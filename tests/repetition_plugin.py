"""Third-party step extensions with request fields, declared and implemented in one file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang_plug import (
    AdmissionPhase,
    ExtensionContext,
    Finish,
    HoldPhase,
    Output,
    OutputPhase,
    ReadySequence,
    Request,
    RequestError,
    SequenceView,
    StepExtension,
    StepExtensionSpec,
    hookimpl,
)


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="repetition", target=f"{__name__}:build_repetition", request_fields=f"{__name__}:RepetitionFields"
    )
    yield StepExtensionSpec(name="delay", target=f"{__name__}:build_delay", request_fields=f"{__name__}:DelayFields")
    yield StepExtensionSpec(name="unused", target=f"{__name__}:build_none", request_fields=f"{__name__}:UnusedFields")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionFields:
    max_repeats: int | None = None
    """The output ends when its last token was generated more often than this in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayFields:
    start_after_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.start_after_ms < 0:
            raise ValueError(f"start_after_ms must not be negative, got {self.start_after_ms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedFields:
    never_used: bool = False


class Repetition(StepExtension, AdmissionPhase, OutputPhase):
    """Ends outputs that repeat one token too often."""

    def __init__(self, fields_of: Callable[[Request], RepetitionFields]) -> None:
        self._fields_of = fields_of

    def admit(self, sequence: SequenceView) -> None:
        max_repeats = self._fields_of(sequence.request).max_repeats
        if max_repeats is not None:
            if max_repeats < 1:
                message = f"max_repeats must be at least 1, got {max_repeats}"
                raise RequestError(message, about="processor_fields", field="max_repeats")
            sequence.extras[self] = max_repeats

    def output(self, sequence: SequenceView, output: Output) -> Output:
        length = sequence.extras.get(self, 0) + 1
        last = list(sequence.tokens[-length:])
        if output.finish is None and length > 1 and sequence.generated >= length and len(set(last)) == 1:
            return replace(output, finish=Finish("stop"))
        return output

    def finished(self, sequence: SequenceView) -> None:
        sequence.extras.pop(self, None)


class Delay(StepExtension, AdmissionPhase, HoldPhase):
    """Holds each request for ``start_after_ms``."""

    def __init__(self, fields_of: Callable[[Request], DelayFields]) -> None:
        self._fields_of = fields_of
        self._held: dict[str, tuple[float, SequenceView]] = {}

    def hold(self, sequence: SequenceView) -> bool:
        seconds = self._fields_of(sequence.request).start_after_ms / 1000
        if seconds:
            self._held[sequence.request.id] = time.monotonic() + seconds, sequence
        return seconds > 0

    def ready(self) -> Sequence[ReadySequence]:
        now = time.monotonic()
        ready = [sequence for due, sequence in self._held.values() if due <= now]
        for sequence in ready:
            del self._held[sequence.request.id]
        return [ReadySequence(sequence) for sequence in ready]

    def finished(self, sequence: SequenceView) -> None:
        self._held.pop(sequence.request.id, None)


def build_repetition(context: ExtensionContext) -> StepExtension:
    return Repetition(context.request_fields)


def build_delay(context: ExtensionContext) -> StepExtension:
    return Delay(context.request_fields)


def build_none(context: ExtensionContext) -> Any:
    return None
