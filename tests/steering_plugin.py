"""Third-party logits processors, declared and implemented in one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsProcessorSpec, LogitsRow, ProcessorRequest, hookimpl


@hookimpl
def register_logits_processors() -> Iterator[LogitsProcessorSpec]:
    yield LogitsProcessorSpec(
        name="steer", target=f"{__name__}:Steering", request_fields=f"{__name__}:SteerFields", order=300
    )
    yield LogitsProcessorSpec(
        name="window", target=f"{__name__}:NoRepeat", request_fields=f"{__name__}:WindowFields", order=400
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    token: int
    strength: float = 1000.0

    def __post_init__(self) -> None:
        if self.strength <= 0:
            raise ValueError(f"strength must be more than 0, got {self.strength}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerFields:
    steer: Steer | None = None
    steer_until: int = 1 << 20
    """Number of output tokens to which the steering applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFields:
    no_repeat_window: int | None = None
    """Number of previous tokens that must not be repeated."""


class Steering(LogitsProcessor):
    """A logits processor that makes one token likelier."""

    def prepare(self, request: ProcessorRequest) -> SteerFields | None:
        fields: SteerFields = request.fields
        if fields.steer is None:
            return None
        if not 0 <= fields.steer.token < self.vocab_size:
            raise ValueError(f"there is no token {fields.steer.token}")
        if fields.steer.token == 13:
            raise RuntimeError("thirteen")
        return fields

    def is_done(self, state: SteerFields, generated: int) -> bool:
        if state.steer and state.steer.token == 15:
            raise RuntimeError("fifteen")
        return generated >= state.steer_until

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        return SteeringBatch([row.state for row in rows], self.device)


class SteeringBatch(LogitsBatch):
    def __init__(self, states: Sequence[SteerFields], device: Any) -> None:
        import torch

        from sglang_plug import upload

        self._states = states
        self._tokens = upload([state.steer.token for state in states], torch.int64, device)[:, None]
        self._strengths = upload([state.steer.strength for state in states], torch.float32, device)[:, None]

    def apply(self, logits: Any, generated: Sequence[int]) -> Any:
        from sglang_plug import upload

        if any(state.steer.token == 14 for state in self._states):
            raise RuntimeError("fourteen")
        on = [float(count < state.steer_until) for state, count in zip(self._states, generated, strict=True)]
        return logits.scatter_add(1, self._tokens, self._strengths * upload(on, logits.dtype, logits.device)[:, None])


class NoRepeat(LogitsProcessor):
    """A logits processor that forbids the last tokens, in the simplest way: without ``regroup``."""

    needs_tokens = True

    def prepare(self, request: ProcessorRequest) -> int | None:
        return request.fields.no_repeat_window

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        return NoRepeatBatch(rows, self.device)


class NoRepeatBatch(LogitsBatch):
    """A batch with the last tokens of each row, the newest one last; -1 where there is none."""

    def __init__(self, rows: Sequence[LogitsRow], device: Any) -> None:
        import torch

        from sglang_plug import send, upload

        widest = max(row.state for row in rows)
        last = torch.full((len(rows), widest), -1)
        for index, row in enumerate(rows):
            tokens = torch.tensor(row.tokens[-widest:])
            last[index, widest - len(tokens) :] = tokens
        self._last = send(last, device)
        windows = upload([row.state for row in rows], torch.int64, device)
        self._near = torch.arange(widest, device=device) >= widest - windows[:, None]

    def apply(self, logits: Any, generated: Sequence[int]) -> Any:
        import torch

        is_near = self._near & (self._last >= 0)
        barred = torch.zeros_like(logits).scatter_add(1, self._last.clamp(min=0), is_near.to(logits.dtype))
        return logits.masked_fill(barred > 0, -torch.inf)

    def append(self, tokens: Any) -> None:
        import torch

        tokens = tokens[:, None]
        self._last = torch.where(tokens >= 0, torch.cat([self._last[:, 1:], tokens], 1), self._last)
